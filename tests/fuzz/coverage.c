/* What `make fuzz-native` adds to the extension: a record of which edges of its code have run, and mutation of inputs.

   gcc calls __sanitizer_cov_trace_pc() at each basic block of what is compiled with -fsanitize-coverage=trace-pc, which
   this file is not. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define EDGES (1 << 16)
#define HEADER_BYTES 8

unsigned char segstore_seen[EDGES];
int segstore_edges; /* how many of them have been seen */

void
__sanitizer_cov_trace_pc(void)
{
    static uintptr_t before;
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)segstore_seen; /* the same in each process */
    uintptr_t edge = (here ^ before) % EDGES;
    before = here << 5;
    if (!segstore_seen[edge]) {
        segstore_seen[edge] = 1;
        segstore_edges++;
    }
}

static uint64_t
draw(uint64_t *seed, uint64_t below)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % below;
}

static void
put32(unsigned char *to, uint32_t number)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(number >> (24 - 8 * i));
}

/* Changes a few bytes, and returns the size after it, which is at most the one before. */
static Py_ssize_t
mutate(unsigned char *data, Py_ssize_t size, uint64_t *seed)
{
    static const unsigned char odd[] = {0, 1, 0x7F, 0x80, 0xC0, 0xFF};
    static const uint32_t numbers[] = {0, 1, 2, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 4096, 4097, 1 << 24};
    for (uint64_t changes = 1 + draw(seed, 4); changes > 0 && size > HEADER_BYTES; changes--) {
        Py_ssize_t at = (Py_ssize_t)draw(seed, size);
        switch (draw(seed, 6)) {
        case 0:
            data[at] ^= 1 << draw(seed, 8);
            break;
        case 1:
            data[at] = odd[draw(seed, sizeof(odd))];
            break;
        case 2:
            if (size - at >= 4)
                put32(data + at, draw(seed, 2) ? (uint32_t)(size - at + draw(seed, 18) - 9)
                                               : numbers[draw(seed, sizeof(numbers) / sizeof(*numbers))]);
            break;
        case 3: {
            Py_ssize_t gone = 1 + (Py_ssize_t)draw(seed, size - at < 24 ? size - at : 24);
            memmove(data + at, data + at + gone, size - at - gone);
            size -= gone;
            break;
        }
        case 4: {
            Py_ssize_t from = (Py_ssize_t)draw(seed, size), most = size - (at > from ? at : from);
            memmove(data + at, data + from, most < 16 ? most : 16);
            break;
        }
        default:
            data[3] = (unsigned char)draw(seed, 256);
        }
    }
    if (size >= HEADER_BYTES && draw(seed, 4)) /* usually make the header's length correct */
        put32(data + 4, (uint32_t)(size - HEADER_BYTES));
    return size;
}

/* Calls `run` with `count` mutations of `data`. Returns a list of those that reached new edges, or NULL with what `run`
   raised. last: gets the size of each in four bytes, and its bytes, before it is run. */
PyObject *
segstore_burst(PyObject *run, PyObject *data, long count, uint64_t seed, unsigned char *last)
{
    PyObject *found = PyList_New(0);
    for (long i = 0; i < count && found != NULL; i++) {
        int before = segstore_edges;
        Py_ssize_t size = PyBytes_GET_SIZE(data);
        memcpy(last + 4, PyBytes_AS_STRING(data), size);
        size = mutate(last + 4, size, &seed);
        put32(last, (uint32_t)size);
        PyObject *input = PyBytes_FromStringAndSize((char *)last + 4, size);
        PyObject *done = input == NULL ? NULL : PyObject_CallOneArg(run, input);
        if (done == NULL || (segstore_edges > before && PyList_Append(found, input) < 0))
            Py_CLEAR(found);
        Py_XDECREF(done);
        Py_XDECREF(input);
    }
    return found;
}
