/* Whole frames in the bytes of recorded connections, as columns of their records: see segstore.wire.trace.framing. */

#include "speed.h"

#define FEW 256
#define OF_PIECE 6 /* ts_ns, connection, direction, source, start, stop */

/* What the records of one piece have in common. */
typedef struct {
    int64_t ts_ns, connection;
    Py_ssize_t count;
    char direction;
} Run;

typedef struct {
    void *items; /* `few` of the same owner, or owned memory */
    Py_ssize_t count, room;
} Items;

typedef struct {
    int64_t few_ends[FEW];
    Run few_runs[FEW];
    Items ends, runs;
    Py_ssize_t size; /* of the frames */
    int64_t first_ns, last_ns;
} Found;

typedef struct {
    int64_t ts_ns, connection, direction, start, stop;
} Piece;

/* Room for one more item of a width; -1 with MemoryError. */
static int
grow(Items *items, const void *few, size_t width)
{
    if (items->count < items->room)
        return 0;
    void *more = items->items == few ? NULL : items->items;
    if (items->room > PY_SSIZE_T_MAX / 2 / (Py_ssize_t)width ||
        (more = PyMem_Realloc(more, 2 * items->room * width)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (items->items == few)
        memcpy(more, few, items->room * width);
    items->items = more;
    items->room *= 2;
    return 0;
}

static int
read_piece(PyObject *tuple, Py_ssize_t size, Piece *piece)
{
    return PyTuple_CheckExact(tuple) && PyTuple_GET_SIZE(tuple) == OF_PIECE &&
           number_in(PyTuple_GET_ITEM(tuple, 0), INT64_MIN, INT64_MAX, &piece->ts_ns) &&
           number_in(PyTuple_GET_ITEM(tuple, 1), 0, INT64_MAX >> 1, &piece->connection) &&
           number_in(PyTuple_GET_ITEM(tuple, 2), 0, 1, &piece->direction) &&
           number_in(PyTuple_GET_ITEM(tuple, 5), 0, size, &piece->stop) &&
           number_in(PyTuple_GET_ITEM(tuple, 4), 0, piece->stop, &piece->start);
}

/* Whether the direction of a piece is in a dict; -1 with an exception. */
static int
is_held(const Piece *piece, PyObject *held)
{
    if (PyDict_GET_SIZE(held) == 0)
        return 0;
    PyObject *key = PyLong_FromLongLong(piece->connection << 1 | piece->direction);
    int is_there = key == NULL ? -1 : PyDict_Contains(held, key);
    Py_XDECREF(key);
    return is_there;
}

/* Adds the whole frames of a piece from `at` on. Returns where they end, or -1 with an exception. */
static Py_ssize_t
take_frames(Found *found, const Piece *piece, const unsigned char *bytes, Py_ssize_t at, int64_t shift, int64_t most,
            const char *looked_at)
{
    Py_ssize_t before = found->ends.count, start = at;
    while (piece->stop - at >= HEADER_BYTES) {
        int64_t length = load32(bytes + at + 4);
        if (length < 0 || length > most || length > piece->stop - at - HEADER_BYTES || looked_at[bytes[at + 3]])
            break;
        if (grow(&found->ends, found->few_ends, sizeof(int64_t)) < 0)
            return -1;
        at += HEADER_BYTES + (Py_ssize_t)length;
        ((int64_t *)found->ends.items)[found->ends.count++] = shift + at;
    }
    if (at == start)
        return at;
    if (grow(&found->runs, found->few_runs, sizeof(Run)) < 0)
        return -1;
    ((Run *)found->runs.items)[found->runs.count++] =
        (Run){piece->ts_ns, piece->connection, found->ends.count - before, (char)piece->direction};
    if (before == 0 || piece->ts_ns < found->first_ns)
        found->first_ns = piece->ts_ns;
    if (before == 0 || piece->ts_ns > found->last_ns)
        found->last_ns = piece->ts_ns;
    found->size += at - start;
    return at;
}

/* Puts a number into a column of int64 several times; returns where the next one goes. */
static char *
put_times(char *to, int64_t number, Py_ssize_t times)
{
    for (; times > 0; times--, to += sizeof(number))
        memcpy(to, &number, sizeof(number));
    return to;
}

/* The result: where it stopped, and the columns. */
static PyObject *
columns_of(const Found *found, Py_ssize_t index, Py_ssize_t at)
{
    Py_ssize_t count = found->ends.count, size = count * (Py_ssize_t)sizeof(int64_t);
    PyObject *values[] = {
        PyLong_FromSsize_t(index),
        PyLong_FromSsize_t(at),
        PyLong_FromSsize_t(found->size),
        PyLong_FromLongLong(found->first_ns),
        PyLong_FromLongLong(found->last_ns),
        PyBytes_FromStringAndSize(NULL, size),
        PyBytes_FromStringAndSize(NULL, size),
        PyBytes_FromStringAndSize(NULL, size),
        PyBytes_FromStringAndSize(NULL, count),
    };
    Py_ssize_t width = sizeof(values) / sizeof(values[0]);
    PyObject *made = PyTuple_New(width);
    for (Py_ssize_t i = 0; i < width && made != NULL; i++)
        if (values[i] == NULL)
            Py_CLEAR(made);
    if (made == NULL) {
        drop(values, width);
        return NULL;
    }
    char *times = PyBytes_AS_STRING(values[5]), *connections = PyBytes_AS_STRING(values[6]);
    char *directions = PyBytes_AS_STRING(values[8]);
    for (Py_ssize_t i = 0; i < found->runs.count; i++) {
        const Run *run = (Run *)found->runs.items + i;
        times = put_times(times, run->ts_ns, run->count);
        connections = put_times(connections, run->connection, run->count);
        memset(directions, run->direction, run->count);
        directions += run->count;
    }
    memcpy(PyBytes_AS_STRING(values[7]), found->ends.items, size);
    for (Py_ssize_t i = 0; i < width; i++)
        PyTuple_SET_ITEM(made, i, values[i]);
    return made;
}

/* Goes through the pieces; 0, or -1: an exception, or declined if none is set. */
static int
go_through(Found *found, PyObject *const *args, const Py_buffer *data, Py_ssize_t *index, Py_ssize_t *at)
{
    int64_t first, from, shift, most;
    PyObject *pieces = args[1], *held = args[7];
    if (!number_in(args[2], 0, PyList_GET_SIZE(pieces), &first) || !number_in(args[3], 0, data->len, &from) ||
        !number_in(args[4], -(INT64_MAX >> 2), INT64_MAX >> 2, &shift) || !number_in(args[5], 0, INT32_MAX, &most))
        return -1;
    const char *looked_at = PyBytes_AS_STRING(args[6]);
    *at = (Py_ssize_t)from;
    for (*index = (Py_ssize_t)first; *index < PyList_GET_SIZE(pieces); ++*index) {
        Piece piece;
        PyObject *tuple = PyList_GET_ITEM(pieces, *index);
        if (!read_piece(tuple, data->len, &piece))
            return -1;
        if (*index == first && (*at < piece.start || *at > piece.stop))
            return -1;
        if (PyTuple_GET_ITEM(tuple, 3) != args[0] || (*index != first && *at != piece.start)) {
            *at = (Py_ssize_t)piece.start;
            return 0;
        }
        int status = is_held(&piece, held);
        if (status != 0)
            return status < 0 ? -1 : 0;
        *at = take_frames(found, &piece, data->buf, *at, shift, most, looked_at);
        if (*at < piece.stop)
            return *at < 0 ? -1 : 0;
    }
    return 0;
}

PyObject *
frames_of_pieces(PyObject *const *args)
{
    Py_buffer data;
    if (!PyList_CheckExact(args[1]) || !PyBytes_CheckExact(args[6]) || PyBytes_GET_SIZE(args[6]) != 256 ||
        !PyDict_CheckExact(args[7]) || hold(args[0], &data) < 0)
        return NULL;
    Found found;
    found.ends = (Items){found.few_ends, 0, FEW};
    found.runs = (Items){found.few_runs, 0, FEW};
    found.size = 0;
    found.first_ns = found.last_ns = 0;
    Py_ssize_t index, at;
    PyObject *made = go_through(&found, args, &data, &index, &at) < 0 ? NULL : columns_of(&found, index, at);
    if (found.ends.items != found.few_ends)
        PyMem_Free(found.ends.items);
    if (found.runs.items != found.few_runs)
        PyMem_Free(found.runs.items);
    PyBuffer_Release(&data);
    return made;
}
