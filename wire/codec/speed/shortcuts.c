/* Functions of Python with an equal in C: what encodes and decodes, what a client does with each event, a hash, what a
   recorder does with all bytes, and a store's copy of appends.

   C is asked first. What it declines, before it has changed anything, goes to the function of Python with the same
   arguments. */

#include "speed.h"

#define LARGE_BYTES 4096 /* a piece of this size is not copied */
#define MAX_TYPES 3
#define MAX_SLOTS 19
#define MAX_POSITIONS 7
#define MAX_TEMPLATE 256 /* bytes of a frame without its data */

struct What;

typedef struct Shortcut {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    const struct What *what;
    PyObject *behind;               /* owned */
    PyObject *dict;                 /* owned, or NULL: what functools.update_wrapper sets */
    Codec *codec;                   /* owned */
    PyTypeObject *types[MAX_TYPES]; /* owned */
    Py_ssize_t slots[MAX_SLOTS];    /* offsets in instances of the types that `What` names */
    PyObject *method;               /* owned, or NULL: name of the method that is called */
    PyObject *head, *end;           /* owned bytes: frames without data, or what one begins with */
    Py_ssize_t positions[MAX_POSITIONS]; /* the first in `head`, the others in `end` */
} Shortcut;

typedef struct What {
    const char *name;
    PyObject *(*ask)(const Shortcut *, PyObject *const *args); /* NULL without an exception: declined */
    int arguments, types, slots, positions;
    const char *method;
    int template; /* whether `head` and `end` are whole frames; else `head` has HEADER_BYTES, or nothing if it is -1 */
    int owners[MAX_SLOTS]; /* index of the type of each slot */
} What;

/* --- frames_of_append(writer, pieces, event_count, event_number, request_id, frame_events) ------------------------ */

/* The header of an event: `event`, which has its type, with the size of a piece. */
static char *
add_header(char *at, const unsigned char *event, PyObject *piece)
{
    memcpy(at, event, HEADER_BYTES);
    store32((unsigned char *)at + 4, (uint32_t)PyBytes_GET_SIZE(piece));
    return at + HEADER_BYTES;
}

/* Adds to `out`: `size` bytes before pieces, the pieces, which are bytes, and `size` bytes behind them. Each piece is
   behind a header, if `event` is not NULL. */
static int
add_joined(PyObject *out, const char *before, Py_ssize_t size_before, PyObject *pieces, Py_ssize_t from, Py_ssize_t to,
           const unsigned char *event, const char *behind, Py_ssize_t size_behind)
{
    Py_ssize_t size = size_before + size_behind + (event == NULL ? 0 : (to - from) * HEADER_BYTES);
    for (Py_ssize_t i = from; i < to; i++)
        size += PyBytes_GET_SIZE(PyList_GET_ITEM(pieces, i));
    if (size == 0)
        return 0;
    PyObject *joined = PyBytes_FromStringAndSize(NULL, size);
    if (joined == NULL)
        return -1;
    char *at = PyBytes_AS_STRING(joined);
    memcpy(at, before, size_before);
    at += size_before;
    for (Py_ssize_t i = from; i < to; i++) {
        PyObject *piece = PyList_GET_ITEM(pieces, i);
        if (event != NULL)
            at = add_header(at, event, piece);
        memcpy(at, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece));
        at += PyBytes_GET_SIZE(piece);
    }
    memcpy(at, behind, size_behind);
    int status = PyList_Append(out, joined);
    Py_DECREF(joined);
    return status;
}

/* No code of Python runs between the look at the pieces and their copies: `out` is made before. */
static PyObject *
frames_of_append(const Shortcut *self, PyObject *const *args)
{
    int64_t count, number, request;
    PyObject *writer = args[0], *pieces = args[1];
    if (!PyBytes_CheckExact(writer) || PyBytes_GET_SIZE(writer) != UUID_BYTES || !PyList_CheckExact(pieces) ||
        !number_in(args[2], INT32_MIN, INT32_MAX, &count) || !number_in(args[3], INT64_MIN, INT64_MAX, &number) ||
        !number_in(args[4], INT64_MIN, INT64_MAX, &request) || !PyBool_Check(args[5]))
        return NULL;
    Py_ssize_t of_block = PyBytes_GET_SIZE(self->head), of_end = self->positions[6], size = 0;
    unsigned char block[MAX_TEMPLATE], end[MAX_TEMPLATE], *event = args[5] == Py_True ? end + of_end : NULL;
    Py_ssize_t of_header = event == NULL ? 0 : HEADER_BYTES;
    PyObject *out = PyList_New(0);
    if (out == NULL)
        return NULL;
    int status = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pieces) && status == 0; i++) {
        PyObject *piece = PyList_GET_ITEM(pieces, i);
        if (!PyBytes_CheckExact(piece) || PyBytes_GET_SIZE(piece) > MAX_FRAME_BYTES - of_block - of_header - size)
            status = -1;
        else
            size += of_header + PyBytes_GET_SIZE(piece);
    }
    if (status == 0) {
        memcpy(block, PyBytes_AS_STRING(self->head), of_block);
        memcpy(end, PyBytes_AS_STRING(self->end), PyBytes_GET_SIZE(self->end));
        store32(block + 4, (uint32_t)(of_block - HEADER_BYTES + size));
        memcpy(block + self->positions[0], PyBytes_AS_STRING(writer), UUID_BYTES);
        memcpy(end + self->positions[1], PyBytes_AS_STRING(writer), UUID_BYTES);
        store32(end + self->positions[2], (uint32_t)size);
        store32(end + self->positions[3], (uint32_t)count);
        store64(end + self->positions[4], (uint64_t)number);
        store64(end + self->positions[5], (uint64_t)request);
    }
    Py_ssize_t from = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pieces) && status == 0; i++) {
        PyObject *piece = PyList_GET_ITEM(pieces, i);
        if (PyBytes_GET_SIZE(piece) < LARGE_BYTES)
            continue;
        char header[HEADER_BYTES];
        if (event != NULL)
            add_header(header, event, piece);
        status = add_joined(out, (char *)block, of_block, pieces, from, i, event, header, of_header);
        status = status < 0 ? -1 : PyList_Append(out, piece);
        of_block = 0; /* it is there */
        from = i + 1;
    }
    if (status == 0)
        status = add_joined(out, (char *)block, of_block, pieces, from, PyList_GET_SIZE(pieces), event, (char *)end,
                            of_end);
    if (status < 0)
        Py_CLEAR(out);
    return out;
}

/* Sets a slot to a value, which is consumed. */
static void
set_slot(PyObject *owner, Py_ssize_t offset, PyObject *value)
{
    PyObject **at = (PyObject **)((char *)owner + offset), *before = *at;
    *at = value;
    Py_XDECREF(before);
}

/* --- take_items(queue, most_events, most_bytes, overhead) --------------------------------------------------------- */

/* Bytes of exactly bytes, a bytearray or a memoryview; -1 if it is something else. */
static Py_ssize_t
size_of(PyObject *data)
{
    if (data == NULL || !(PyBytes_CheckExact(data) || PyByteArray_CheckExact(data) || PyMemoryView_Check(data)))
        return -1;
    Py_ssize_t size = PyBytes_CheckExact(data) ? PyBytes_GET_SIZE(data) : PyObject_Size(data);
    if (size < 0)
        PyErr_Clear(); /* a view that was released: Python says so */
    return size;
}

/* The items that are taken are added to `items`, their data to `pieces`; 0, or -1 if it is declined. Changes nothing
   else. */
static int
look(PyTypeObject *type, Py_ssize_t of_data, Py_ssize_t of_events, PyObject *queue,
     int64_t most_events, int64_t most_bytes, int64_t overhead, PyObject *items, PyObject *pieces, int64_t *events,
     int64_t *size)
{
    Py_ssize_t i = 0;
    *events = *size = 0;
    for (; i < PyList_GET_SIZE(queue) && (i == 0 || *events < most_events); i++) {
        PyObject *item = PyList_GET_ITEM(queue, i);
        int64_t count;
        int64_t bytes;
        if (!Py_IS_TYPE(item, type) || !number_in(slot(item, of_events), 0, INT32_MAX, &count) ||
            (bytes = size_of(slot(item, of_data))) < 0)
            return -1;
        bytes += overhead;
        if (i > 0 && bytes > most_bytes - *size)
            break;
        if (PyList_Append(items, item) < 0 || PyList_Append(pieces, slot(item, of_data)) < 0)
            return -1;
        *events += count;
        *size += bytes;
    }
    return i == 0 ? -1 : 0;
}

/* All objects that the garbage collector knows are made before the look at the queue, so that no finalizer runs until
   the items are removed from it. */
static PyObject *
take_items(const Shortcut *self, PyObject *const *args)
{
    int64_t most_events, most_bytes, overhead, events, size;
    PyObject *queue = args[0];
    if (!PyList_CheckExact(queue) || !number_in(args[1], INT64_MIN, INT64_MAX, &most_events) ||
        !number_in(args[2], 0, INT32_MAX, &most_bytes) || !number_in(args[3], 0, INT32_MAX, &overhead))
        return NULL;
    PyObject *items = PyList_New(0), *pieces = items == NULL ? NULL : PyList_New(0);
    PyObject *taken = pieces == NULL ? NULL : PyTuple_New(4);
    int status = -1;
    if (taken != NULL) {
        PyTuple_SET_ITEM(taken, 0, Py_NewRef(items));
        PyTuple_SET_ITEM(taken, 1, Py_NewRef(pieces));
        status = look(self->types[0], self->slots[0], self->slots[1], queue, most_events, most_bytes, overhead, items,
                      pieces, &events, &size);
    }
    Py_XDECREF(items);
    Py_XDECREF(pieces);
    if (status == 0) {
        PyTuple_SET_ITEM(taken, 2, PyLong_FromLongLong(events));
        PyTuple_SET_ITEM(taken, 3, PyLong_FromLongLong(size));
        if (PyTuple_GET_ITEM(taken, 2) == NULL || PyTuple_GET_ITEM(taken, 3) == NULL)
            status = -1;
    }
    if (status < 0 || PyList_SetSlice(queue, 0, PyList_GET_SIZE(items), NULL) < 0)
        Py_CLEAR(taken);
    return taken;
}

/* --- take(queue, most_events, most_bytes, now_s), acknowledged(queue, number, previous) ---------------------------- */

/* Only if nothing is in flight. All objects that the garbage collector knows are made before the look, as above. */
static PyObject *
take(const Shortcut *self, PyObject *const *args)
{
    const Py_ssize_t *slots = self->slots;
    int64_t most_events, most_bytes, overhead, last, events, size;
    PyObject *queue = args[0];
    if (!Py_IS_TYPE(queue, self->types[0]) || slot(queue, slots[4]) != Py_None ||
        !number_in(args[1], INT64_MIN, INT64_MAX, &most_events) || !number_in(args[2], 0, INT32_MAX, &most_bytes))
        return NULL;
    PyObject *items = PyList_New(0), *pieces = items == NULL ? NULL : PyList_New(0), *append = NULL, *taken = NULL;
    PyObject *numbers[3] = {NULL, NULL, NULL};
    if (pieces != NULL)
        append = PyObject_Vectorcall((PyObject *)self->types[2],
                                     (PyObject *[]){Py_None, Py_None, items, Py_None, args[3]}, 5, NULL);
    if (append != NULL)
        taken = PyTuple_Pack(2, append, pieces);
    PyObject *queued = slot(queue, slots[0]), *later = slot(queue, slots[1]);
    int status = -1;
    if (taken != NULL && queued != NULL && PyList_CheckExact(queued) && later != NULL && PyList_CheckExact(later) &&
        PyList_GET_SIZE(later) == 0 && slot(queue, slots[4]) == Py_None &&
        number_in(slot(queue, slots[2]), 0, INT32_MAX, &overhead) &&
        number_in(slot(queue, slots[3]), INT64_MIN / 2, INT64_MAX / 2, &last))
        status = look(self->types[1], slots[5], slots[6], queued, most_events, most_bytes, overhead, items, pieces,
                      &events, &size);
    if (status == 0) {
        numbers[0] = PyLong_FromLongLong(last + 1);
        numbers[1] = PyLong_FromLongLong(last + events);
        numbers[2] = PyLong_FromLongLong(size);
        if (numbers[0] == NULL || numbers[1] == NULL || numbers[2] == NULL ||
            PyList_SetSlice(queued, 0, PyList_GET_SIZE(items), NULL) < 0)
            status = -1;
    }
    if (status == 0) {
        set_slot(append, slots[7], Py_NewRef(numbers[0]));
        set_slot(append, slots[8], Py_NewRef(numbers[1]));
        set_slot(append, slots[10], Py_NewRef(numbers[2]));
        set_slot(queue, slots[3], Py_NewRef(numbers[1]));
        set_slot(queue, slots[4], Py_NewRef(append));
    }
    else
        Py_CLEAR(taken);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(numbers[i]);
    Py_XDECREF(items);
    Py_XDECREF(pieces);
    Py_XDECREF(append);
    return taken;
}

/* Only of a whole append that alone is in flight. The result is made before the look. */
static PyObject *
acknowledged(const Shortcut *self, PyObject *const *args)
{
    const Py_ssize_t *slots = self->slots;
    int64_t number, previous, first, last, size, full_at, settled;
    PyObject *queue = args[0];
    if (!Py_IS_TYPE(queue, self->types[0]) || !number_in(args[1], INT64_MIN, INT64_MAX, &number) ||
        !number_in(args[2], INT64_MIN, INT64_MAX, &previous))
        return NULL;
    PyObject *found = PyTuple_New(2);
    if (found == NULL)
        return NULL;
    PyObject *append = slot(queue, slots[0]), *behind = slot(queue, slots[1]), *full = NULL, *count = NULL;
    if (append != NULL && Py_IS_TYPE(append, self->types[1]) && behind != NULL &&
        Py_IS_TYPE(behind, self->types[2]) && Py_SIZE(behind) == 0 &&
        number_in(slot(append, slots[5]), INT64_MIN, INT64_MAX, &first) &&
        number_in(slot(append, slots[6]), INT64_MIN, INT64_MAX, &last) && number == last && previous < first &&
        slot(append, slots[7]) != NULL && PyList_CheckExact(slot(append, slots[7])) &&
        number_in(slot(append, slots[8]), 0, INT64_MAX / 2, &size) &&
        number_in(slot(queue, slots[2]), 0, INT64_MAX / 2, &full_at) &&
        number_in(slot(queue, slots[3]), 0, INT64_MAX / 2, &settled)) {
        full = PyLong_FromLongLong(full_at + size);
        count = full == NULL ? NULL : PyLong_FromLongLong(settled + PyList_GET_SIZE(slot(append, slots[7])));
    }
    if (count == NULL) {
        Py_XDECREF(full);
        Py_DECREF(found);
        return NULL;
    }
    PyTuple_SET_ITEM(found, 0, Py_NewRef(slot(append, slots[7])));
    PyTuple_SET_ITEM(found, 1, Py_NewRef(slot(append, slots[8])));
    set_slot(queue, slots[2], full);
    set_slot(queue, slots[3], count);
    set_slot(queue, slots[4], Py_NewRef(args[1]));
    set_slot(queue, slots[0], Py_NewRef(Py_None));
    return found;
}

/* --- add(queue, item), add_behind(routes, key, event, new_future, budget) ----------------------------------------- */

#define SHORT 16384     /* length of a list of items */
#define MANY_ITEMS 1024 /* at each multiple of this length, the caller decides */
#define LEAST_COST 64   /* of an event in a budget */

/* The list of a queue to which items are added, and its total with another item; NULL if Python has to look. */
static PyObject *
newest_of(const Shortcut *self, PyObject *queue, Py_ssize_t size, int64_t *added)
{
    PyObject *newest = slot(queue, self->slots[0]);
    int64_t overhead;
    if (newest == NULL || !PyList_CheckExact(newest) || PyList_GET_SIZE(newest) >= SHORT ||
        !number_in(slot(queue, self->slots[1]), 0, INT64_MAX / 2, added) ||
        !number_in(slot(queue, self->slots[2]), 0, INT32_MAX, &overhead))
        return NULL;
    *added += overhead + size;
    return newest;
}

static PyObject *
add(const Shortcut *self, PyObject *const *args)
{
    PyObject *queue = args[0], *item = args[1];
    int64_t added;
    if (!Py_IS_TYPE(queue, self->types[0]) || !Py_IS_TYPE(item, self->types[1]))
        return NULL;
    Py_ssize_t size = size_of(slot(item, self->slots[4]));
    PyObject *newest = size < 0 ? NULL : newest_of(self, queue, size, &added);
    PyObject *total = newest == NULL ? NULL : PyLong_FromLongLong(added);
    if (total == NULL)
        return NULL;
    int first = PyList_GET_SIZE(newest) == 0 && newest == slot(queue, self->slots[3]);
    if (PyList_Append(newest, item) < 0) {
        Py_DECREF(total);
        return NULL;
    }
    set_slot(queue, self->slots[1], total);
    return PyBool_FromLong(first);
}

/* Queues the item of an event: 1 if it is queued, 0 if the answer is None, -1 if it is declined or an exception is set. */
static int
queue_event(const Shortcut *self, PyObject *queue, PyObject *position, PyObject *event, PyObject *done, PyObject *budget)
{
    int64_t added, full_at, left, largest;
    Py_ssize_t size = PyBytes_GET_SIZE(event), cost = size < LEAST_COST ? LEAST_COST : size;
    PyObject *newest = newest_of(self, queue, size, &added);
    if (newest == NULL || !number_in(slot(queue, self->slots[3]), INT64_MIN, INT64_MAX, &full_at) ||
        !number_in(slot(budget, self->slots[4]), INT64_MIN / 2, INT64_MAX, &left) ||
        !number_in(slot(budget, self->slots[5]), INT64_MIN, INT64_MAX, &largest))
        return -1;
    if (PyList_GET_SIZE(newest) % MANY_ITEMS == 0 || added >= full_at || cost >= left || size > largest)
        return 0;
    PyObject *total = PyLong_FromLongLong(added), *rest = PyLong_FromLongLong(left - cost), *one = PyLong_FromLong(1);
    PyObject *item = NULL;
    if (total != NULL && rest != NULL && one != NULL)
        item = PyObject_Vectorcall((PyObject *)self->types[1], (PyObject *[]){event, one, position, done}, 4, NULL);
    int status = item == NULL || PyList_Append(newest, item) < 0 ? -1 : 1;
    Py_XDECREF(one);
    Py_XDECREF(item);
    if (status < 0) {
        Py_XDECREF(total);
        Py_XDECREF(rest);
        return -1;
    }
    set_slot(queue, self->slots[1], total);
    set_slot(budget, self->slots[4], rest);
    return 1;
}

/* The future is made before the look at the queue, because a finalizer may run then. The item's class, which the
   garbage collector does not track, runs none. */
static PyObject *
add_behind(const Shortcut *self, PyObject *const *args)
{
    PyObject *routes = args[0], *key = args[1], *event = args[2], *budget = args[4];
    if (!PyDict_CheckExact(routes) || !(key == Py_None || PyUnicode_CheckExact(key)) || !PyBytes_CheckExact(event) ||
        !Py_IS_TYPE(budget, self->types[2]))
        return NULL;
    PyObject *route = PyDict_GetItemWithError(routes, key);
    if (route == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (!PyTuple_CheckExact(route) || PyTuple_GET_SIZE(route) != 3 ||
        !Py_IS_TYPE(PyTuple_GET_ITEM(route, 0), self->types[0]))
        return NULL;
    Py_INCREF(route);
    PyObject *done = PyObject_CallNoArgs(args[3]);
    int status = -1;
    if (done != NULL)
        status = queue_event(self, PyTuple_GET_ITEM(route, 0), PyTuple_GET_ITEM(route, 1), event, done, budget);
    Py_DECREF(route);
    if (status <= 0)
        Py_CLEAR(done);
    return status == 0 ? Py_NewRef(Py_None) : done;
}

/* --- resolve_stored(items, failed) -------------------------------------------------------------------------------- */

/* The exception that is set, which is an Exception, goes to `failed`; -1 with any other, or what that raises. */
static int
report(PyObject *failed)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *problem = PyErr_GetRaisedException();
#else
    PyObject *type, *problem, *trace;
    PyErr_Fetch(&type, &problem, &trace);
    PyErr_NormalizeException(&type, &problem, &trace);
    if (trace != NULL)
        PyException_SetTraceback(problem, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
#endif
    PyObject *done = PyObject_CallOneArg(failed, problem);
    Py_DECREF(problem);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Tells one item; -1 with an exception. */
static int
tell(const Shortcut *self, PyObject *done, PyObject *failed)
{
    int is_future = PyObject_TypeCheck(done, self->types[1]);
    PyObject *result =
        is_future ? PyObject_CallMethodOneArg(done, self->method, Py_None) : PyObject_CallOneArg(done, Py_None);
    if (result == NULL && !is_future)
        return report(failed);
    if (result == NULL && PyErr_ExceptionMatches((PyObject *)self->types[2]))
        PyErr_Clear(); /* its waiter was cancelled */
    Py_XDECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

/* What is called may change the list and its items: each is looked at when it is its turn. */
static PyObject *
resolve_stored(const Shortcut *self, PyObject *const *args)
{
    PyObject *items = args[0];
    if (!PyList_CheckExact(items))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *done = Py_IS_TYPE(item, self->types[0]) ? Py_XNewRef(slot(item, self->slots[0])) : NULL;
        if (done == NULL) { /* the others are Python's */
            PyObject *others = PyList_GetSlice(items, i, PyList_GET_SIZE(items));
            PyObject *result = others == NULL ? NULL : PyObject_CallFunctionObjArgs(self->behind, others, args[1], NULL);
            Py_XDECREF(others);
            return result;
        }
        int status = tell(self, done, args[1]);
        Py_DECREF(done);
        if (status < 0)
            return NULL;
    }
    return Py_NewRef(Py_None);
}

/* --- split_events(data, start, limit, base, make, where, out) ----------------------------------------------------- */

/* Events that are whole: what all begin with, an int32 length, as many bytes. Returns where they end, or -1 with an
   exception. */
static Py_ssize_t
split(const Shortcut *self, PyObject *const *args, const Py_buffer *data, Py_ssize_t at, int64_t limit, int64_t base)
{
    const unsigned char *bytes = data->buf;
    const char *head = PyBytes_AS_STRING(self->head);
    while (data->len - at >= HEADER_BYTES && memcmp(bytes + at, head, 4) == 0) {
        Py_ssize_t length = load32(bytes + at + 4);
        if (length < 0 || length > limit || length > data->len - at - HEADER_BYTES)
            break;
        PyObject *event = PyBytes_FromStringAndSize((char *)bytes + at + HEADER_BYTES, length);
        PyObject *offset = event == NULL ? NULL : PyLong_FromLongLong(base + at);
        PyObject *made = NULL;
        if (offset != NULL)
            made = PyObject_Vectorcall(args[4], (PyObject *[]){event, offset, args[5]}, 3, NULL);
        int status = made == NULL ? -1 : PyList_Append(args[6], made);
        Py_XDECREF(event);
        Py_XDECREF(offset);
        Py_XDECREF(made);
        if (status < 0)
            return -1;
        at += HEADER_BYTES + length;
    }
    return at;
}

static PyObject *
split_events(const Shortcut *self, PyObject *const *args)
{
    int64_t start, limit, base;
    Py_buffer data;
    if (!PyList_CheckExact(args[6]) || hold(args[0], &data) < 0)
        return NULL;
    PyObject *end = NULL;
    if (number_in(args[1], 0, data.len, &start) && number_in(args[2], 0, INT32_MAX, &limit) &&
        number_in(args[3], 0, INT64_MAX - data.len, &base)) {
        Py_ssize_t at = split(self, args, &data, (Py_ssize_t)start, limit, base);
        end = at < 0 ? NULL : PyLong_FromSsize_t(at);
    }
    PyBuffer_Release(&data);
    return end;
}

/* --- murmur3_128_low(data, seed) ---------------------------------------------------------------------------------- */

#define C1 0x87C37B91114253D5u
#define C2 0x4CF5AD432745937Fu

static inline uint64_t
rotated(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

static inline uint64_t
final_mix(uint64_t h)
{
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDu;
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 33;
}

/* At most 8 bytes as a little-endian number. */
static inline uint64_t
little(const unsigned char *from, Py_ssize_t size)
{
    uint64_t number = 0;
    for (Py_ssize_t i = size; i > 0; i--)
        number = number << 8 | from[i - 1];
    return number;
}

static PyObject *
murmur3_128_low(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    int64_t seed;
    if (!PyBytes_CheckExact(args[0]) || !number_in(args[1], INT64_MIN, INT64_MAX, &seed))
        return NULL;
    const unsigned char *at = (unsigned char *)PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), left = size;
    uint64_t h1 = (uint64_t)seed, h2 = h1;
    for (; left >= 16; left -= 16, at += 16) {
        h1 ^= rotated(little(at, 8) * C1, 31) * C2;
        h1 = (rotated(h1, 27) + h2) * 5 + 0x52DCE729u;
        h2 ^= rotated(little(at + 8, 8) * C2, 33) * C1;
        h2 = (rotated(h2, 31) + h1) * 5 + 0x38495AB5u;
    }
    if (left > 8)
        h2 ^= rotated(little(at + 8, left - 8) * C2, 33) * C1;
    h1 ^= rotated(little(at, left < 8 ? left : 8) * C1, 31) * C2;
    h1 ^= (uint64_t)size;
    h2 ^= (uint64_t)size;
    h1 += h2;
    return PyLong_FromUnsignedLongLong(final_mix(h1) + final_mix(h1 + h2));
}

/* --- the type ----------------------------------------------------------------------------------------------------- */

static PyObject *
decode(const Shortcut *self, PyObject *const *args)
{
    return read_frame(self->codec, args[0]);
}

static PyObject *
encode(const Shortcut *self, PyObject *const *args)
{
    return write_frame(self->codec, args[0]);
}

static PyObject *
encode_parts(const Shortcut *self, PyObject *const *args)
{
    return write_parts(self->codec, args[0]);
}

static PyObject *
find_whole_frames(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    return whole_frames(args);
}

static PyObject *
put_frames_into(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    return frames_into(args);
}

static PyObject *
copy_into_memory(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    return copy_into(args);
}

static PyObject *
add_recorded_piece(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    return add_piece(args);
}

static PyObject *
append_rows_to_segment(const Shortcut *self, PyObject *const *args)
{
    return append_rows(self->types[0], self->slots, args);
}

static PyObject *
store_plain_runs(const Shortcut *self, PyObject *const *args)
{
    const State *state = PyType_GetModuleState(Py_TYPE(self));
    return state == NULL ? NULL : store_plain(self->types, state->acks, self->slots, self->method, args);
}

static PyObject *
make_record_of_rows(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    return record_of_rows(args);
}

/*  name, function, arguments, types, slots, positions, method, template, owners */
static const What whats[] = {
    {"decode", decode, 1, 0, 0, 0, NULL, -1},
    {"encode", encode, 1, 0, 0, 0, NULL, -1},
    {"encode_parts", encode_parts, 1, 0, 0, 0, NULL, -1},
    {"frames_of_append", frames_of_append, 6, 0, 0, 7, NULL, 1},
    {"take_items", take_items, 4, 1, 2, 0, NULL, -1},
    {"take", take, 4, 3, 11, 0, NULL, -1, {0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2}},
    {"acknowledged", acknowledged, 3, 3, 9, 0, NULL, -1, {0, 0, 0, 0, 0, 1, 1, 1, 1}},
    {"add", add, 2, 2, 5, 0, NULL, -1, {0, 0, 0, 0, 1}},
    {"add_behind", add_behind, 5, 3, 6, 0, NULL, -1, {0, 0, 0, 0, 2, 2}},
    {"resolve_stored", resolve_stored, 2, 3, 1, 0, "set_result", -1},
    {"split_events", split_events, 7, 0, 0, 0, NULL, 0},
    {"murmur3_128_low", murmur3_128_low, 2, 0, 0, 0, NULL, -1},
    {"whole_frames", find_whole_frames, 7, 0, 0, 0, NULL, -1},
    {"frames_into", put_frames_into, 6, 0, 0, 0, NULL, -1},
    {"copy_into", copy_into_memory, 3, 0, 0, 0, NULL, -1},
    {"add_piece", add_recorded_piece, 6, 0, 0, 0, NULL, -1},
    {"append_rows", append_rows_to_segment, 4, 1, 6, 0, NULL, -1},
    {"store_plain", store_plain_runs, 6, 2, 19, 0, "update_index", -1, {[12] = 1, 1, 1, 1, 1, 1, 1}},
    {"record_of_rows", make_record_of_rows, 5, 0, 0, 0, NULL, -1},
};

static PyObject *
shortcut_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Shortcut *self = (Shortcut *)callable;
    if (PyVectorcall_NARGS(nargsf) == self->what->arguments && names == NULL) {
        PyObject *made = self->what->ask(self, args);
        if (made != NULL || PyErr_Occurred())
            return made;
    }
    return PyObject_Vectorcall(self->behind, args, nargsf, names);
}

/* -1, with an exception unless a number of arguments is wrong. */
static int
shortcut_init(Shortcut *self, PyObject *types, PyObject *slots, PyObject *positions)
{
    const What *what = self->what;
    if (PyTuple_GET_SIZE(types) != what->types || PyTuple_GET_SIZE(slots) != what->slots ||
        PyTuple_GET_SIZE(positions) != what->positions)
        return -1;
    for (int i = 0; i < what->types; i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i);
        if (!PyType_Check(type))
            return -1;
        self->types[i] = (PyTypeObject *)Py_NewRef(type);
    }
    for (int i = 0; i < what->slots; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(slots, i));
        if (name == NULL || (self->slots[i] = slot_of(self->types[what->owners[i]], name)) < 0)
            return -1;
    }
    if (what->method != NULL && (self->method = PyUnicode_InternFromString(what->method)) == NULL)
        return -1;
    Py_ssize_t head = PyBytes_GET_SIZE(self->head), end = PyBytes_GET_SIZE(self->end);
    if (what->template >= 0 && (head < HEADER_BYTES || head > MAX_TEMPLATE))
        return -1;
    if (what->template > 0 && (end < HEADER_BYTES || end > MAX_TEMPLATE))
        return -1;
    static const Py_ssize_t widths[MAX_POSITIONS] = {UUID_BYTES, UUID_BYTES, 4, 4, 8, 8, HEADER_BYTES};
    for (int i = 0; i < what->positions; i++) {
        Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i));
        if (position < HEADER_BYTES || position > (i == 0 ? head : end) - widths[i])
            return -1;
        self->positions[i] = position;
    }
    return 0;
}

static PyObject *
shortcut_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *codec, *behind, *types, *slots, *head, *end, *positions;
    const char *name;
    static char *keywords[] = {"codec", "what", "behind", "types", "slots", "head", "end", "positions", NULL};
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!sOO!O!O!O!O!:Shortcut", keywords, state->codec,
                                                      &codec, &name, &behind, &PyTuple_Type, &types, &PyTuple_Type,
                                                      &slots, &PyBytes_Type, &head, &PyBytes_Type, &end, &PyTuple_Type,
                                                      &positions))
        return NULL;
    const What *what = NULL;
    for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++)
        if (strcmp(name, whats[i].name) == 0)
            what = &whats[i];
    if (what == NULL || !PyCallable_Check(behind))
        return PyErr_Format(PyExc_ValueError, "no shortcut for %s", name);
    Shortcut *self = (Shortcut *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = shortcut_call;
    self->what = what;
    self->behind = Py_NewRef(behind);
    self->codec = (Codec *)Py_NewRef(codec);
    self->head = Py_NewRef(head);
    self->end = Py_NewRef(end);
    if (shortcut_init(self, types, slots, positions) < 0) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "a shortcut for %s is made in another way", name);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int
shortcut_traverse(Shortcut *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->codec);
    Py_VISIT(self->behind);
    Py_VISIT(self->dict);
    for (int i = 0; i < MAX_TYPES; i++)
        Py_VISIT(self->types[i]);
    return 0;
}

/* All that it works with stays until the end: one that is called by another finalizer still works. */
static int
shortcut_clear(Shortcut *self)
{
    Py_CLEAR(self->dict);
    return 0;
}

static void
shortcut_dealloc(Shortcut *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < MAX_TYPES; i++)
        Py_XDECREF(self->types[i]);
    Py_XDECREF(self->method);
    Py_XDECREF(self->codec);
    Py_XDECREF(self->behind);
    Py_XDECREF(self->dict);
    Py_XDECREF(self->head);
    Py_XDECREF(self->end);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Functions are pickled and copied by name, and so is this. */
static PyObject *
shortcut_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef shortcut_methods[] = {
    {"__reduce__", shortcut_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef shortcut_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef shortcut_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Shortcut, vectorcall), Py_READONLY, NULL},
    {"__dictoffset__", Py_T_PYSSIZET, offsetof(Shortcut, dict), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot shortcut_slots[] = {
    {Py_tp_new, shortcut_new},
    {Py_tp_dealloc, shortcut_dealloc},
    {Py_tp_traverse, shortcut_traverse},
    {Py_tp_clear, shortcut_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, shortcut_methods},
    {Py_tp_members, shortcut_members},
    {Py_tp_getset, shortcut_getset},
    {0, NULL},
};

PyType_Spec shortcut_spec = {
    .name = "segstore._speed.Shortcut",
    .basicsize = sizeof(Shortcut),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = shortcut_slots,
};
