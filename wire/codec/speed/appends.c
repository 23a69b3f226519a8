/* What a store does with appends: copies them into memory and into records of its journal; see segstore.server.store.
   What a session does with those about which nothing is to be decided; see segstore.server.connection.writers. */

#include "speed.h"

#define MAX_RECORD (1 << 30) /* bytes in the data of a journal's record */
#define RECORD_END 45
#define MSGPACK_INT64 0xD3
#define MSGPACK_BIN8 0xC4
#define MSGPACK_BIN32 0xC6

/* Copies the data of a row to `at`, which it moves, and adds its events; -1 if it is declined, 1 if there is no room. */
static int
copy_row(PyObject *row, const Py_buffer *memory, Py_ssize_t *at, int64_t *events)
{
    Py_buffer data;
    int64_t count;
    if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 4 ||
        !number_in(PyTuple_GET_ITEM(row, 1), INT32_MIN, INT32_MAX, &count) ||
        hold(PyTuple_GET_ITEM(row, 2), &data) < 0)
        return -1;
    int is_full = data.len > memory->len - *at;
    if (!is_full) {
        memmove((char *)memory->buf + *at, data.buf, data.len);
        *at += data.len;
        *events += count;
    }
    PyBuffer_Release(&data);
    return is_full;
}

/* The slots of a segment and of a writer, in the order in which Python names them. */
enum {
    ATTRIBUTES, TAIL, TAIL_USED, LENGTH, EVENT_COUNT, LAST_MODIFIED_MS, GATE, INDEX_DUE_MS, INDEX, INDEX_ENTRY_SIZE,
    MAPPED,
    ID_BYTES, IS_SET_UP, LAST_STORED, CONTAINER, CONTAINER_ID, FOUND, ADD_RECORD, RECORD_BEGIN
};
enum { CHANGED = LAST_MODIFIED_MS + 1 }; /* the first slots of a segment */

/* The number of a row of a list, which has it first; NULL if it has none. */
static PyObject *
number_of(PyObject *rows, Py_ssize_t index, int64_t *number)
{
    PyObject *row = index >= 0 && index < PyList_GET_SIZE(rows) ? PyList_GET_ITEM(rows, index) : NULL;
    if (row == NULL || !PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 4 ||
        !number_in(PyTuple_GET_ITEM(row, 0), INT64_MIN, INT64_MAX, number))
        return NULL;
    return PyTuple_GET_ITEM(row, 0);
}

static void
set_slots(PyObject *segment, const Py_ssize_t *slots, PyObject **after)
{
    for (int i = TAIL_USED; i < CHANGED; i++)
        set_slot(segment, slots[i], after[i]);
}

/* What an append needs of a segment. */
typedef struct {
    Py_buffer memory; /* of the tail; held */
    int64_t used, length, events;
} Tail;

/* 0, or -1 if it is declined. */
static int
open_tail(PyObject *segment, const Py_ssize_t *slots, Tail *tail)
{
    PyObject *memory = slot(segment, slots[TAIL]), *events = slot(segment, slots[EVENT_COUNT]);
    tail->events = 0;
    if (memory == NULL || events == NULL || slot(segment, slots[LAST_MODIFIED_MS]) == NULL ||
        hold_writable(memory, &tail->memory) < 0)
        return -1;
    if (number_in(slot(segment, slots[TAIL_USED]), 0, tail->memory.len, &tail->used) &&
        number_in(slot(segment, slots[LENGTH]), 0, INT64_MAX - tail->memory.len, &tail->length) &&
        (events == Py_None || number_in(events, INT64_MIN >> 1, INT64_MAX >> 1, &tail->events)))
        return 0;
    PyBuffer_Release(&tail->memory);
    return -1;
}

/* Makes the values of a segment's slots when the used bytes end at `at`; -1 with MemoryError, and then `after` is empty. */
static int
make_slots(const Tail *tail, int64_t at, int64_t events, PyObject *now_ms, PyObject **after)
{
    after[TAIL_USED] = PyLong_FromLongLong(at);
    after[LENGTH] = PyLong_FromLongLong(tail->length + at - tail->used);
    after[EVENT_COUNT] = PyLong_FromLongLong(events);
    after[LAST_MODIFIED_MS] = Py_NewRef(now_ms);
    if (after[TAIL_USED] != NULL && after[LENGTH] != NULL && after[EVENT_COUNT] != NULL)
        return 0;
    drop(after, CHANGED);
    return -1;
}

/* Copies rows behind the tail's used bytes, which nothing refers to, and makes the values that slots of the segment have
   then; 1 if there is no room for all, -1: an exception, or declined if none is set. */
static int
prepare(PyObject *segment, const Py_ssize_t *slots, PyObject *rows, PyObject *now_ms, PyObject **after)
{
    Tail tail;
    if (open_tail(segment, slots, &tail) < 0)
        return -1;
    Py_ssize_t at = (Py_ssize_t)tail.used;
    int64_t count = 0;
    int status = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows) && status == 0; i++) {
        status = copy_row(PyList_GET_ITEM(rows, i), &tail.memory, &at, &count);
        if (count < -(INT64_MAX >> 2) || count > INT64_MAX >> 2)
            status = -1;
    }
    PyBuffer_Release(&tail.memory);
    return status != 0 ? status : make_slots(&tail, at, tail.events + count, now_ms, after);
}

/* Sets the slots, and the last number of a writer unless it is NULL; -1 with an exception if nothing has changed. Code
   of the attributes' other keys may run: the caller holds all of it. Takes what is in `after`. */
static int
commit(PyObject *segment, const Py_ssize_t *slots, PyObject *attributes, PyObject *writer, PyObject *number,
       PyObject **after)
{
    if (writer != NULL && PyDict_SetItem(attributes, writer, number) < 0) {
        drop(after, CHANGED);
        return -1;
    }
    if (writer == NULL)
        Py_XSETREF(after[EVENT_COUNT], Py_XNewRef(slot(segment, slots[EVENT_COUNT])));
    set_slots(segment, slots, after);
    return 0;
}

PyObject *
append_rows(const Shortcut *self, PyObject *const *args)
{
    PyObject *segment = args[0], *writer = args[1], *rows = args[2], *after[CHANGED] = {NULL};
    const Py_ssize_t *slots = self->slots;
    int64_t unused;
    if (!Py_IS_TYPE(segment, self->types[0]) || !PyBytes_CheckExact(writer) || !PyList_CheckExact(rows) ||
        !number_in(args[3], INT64_MIN, INT64_MAX, &unused))
        return NULL;
    PyObject *attributes = slot(segment, slots[ATTRIBUTES]);
    if (attributes == NULL || !PyDict_CheckExact(attributes))
        return NULL;
    Py_INCREF(attributes); /* a key's code may run, and change the segment and the rows */
    int has_writer = PyBytes_GET_SIZE(writer) > 0, is_known = has_writer ? PyDict_Contains(attributes, writer) : 1;
    PyObject *number = Py_XNewRef(number_of(rows, PyList_GET_SIZE(rows) - 1, &unused));
    int status = is_known == 0 ? 1 : -1;
    if (is_known > 0 && number != NULL)
        status = prepare(segment, slots, rows, args[3], after);
    if (status == 0)
        status = commit(segment, slots, attributes, has_writer ? writer : NULL, number, after);
    Py_XDECREF(number);
    Py_DECREF(attributes);
    return status < 0 ? NULL : Py_NewRef(status == 0 ? Py_True : Py_False);
}

/* --- plain runs -------------------------------------------------------------------------------------------------- */

#define AGAIN 2        /* the index is up to date now, but code of Python has run: the run is looked at again */
#define ENTRY_BYTES 24 /* of segstore.server.store.index, as is the next */
#define INDEX_DELAY_MS 10

typedef struct {
    PyTypeObject *segment, *writer;
    const Py_ssize_t *slots;
    PyObject *update_index;                             /* name of the method */
    PyObject *containers, *now_ms, *acknowledge, *acks; /* borrowed: the caller's arguments */
    int64_t now;
} Storing;

/* A run that is looked at. Code of keys may run meanwhile: all that is used is held. */
typedef struct {
    PyObject *writer, *rows, *segment, *attributes, *key, *number; /* owned; NULL if not known yet */
    int64_t last;                                                  /* number that the segment has of the writer */
} Plain;

/* Gets the value of a key, whose own code is not Python's; 1 if there is one, 0 if not, -1: an exception, or declined if
   none is set. */
static int
look_up(PyObject *dict, PyObject *key, PyObject **value)
{
    *value = NULL;
    if (dict == NULL || !PyDict_CheckExact(dict) || key == NULL ||
        !(PyUnicode_CheckExact(key) || PyBytes_CheckExact(key) || PyLong_CheckExact(key)))
        return -1;
    Py_INCREF(dict);
    Py_INCREF(key);
    *value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
    Py_DECREF(key);
    Py_DECREF(dict);
    return *value != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* Finds the segment of the run's writer, and the writer's last number there; as look_up(). */
static int
find_segment(const Storing *storing, Plain *run)
{
    const Py_ssize_t *slots = storing->slots;
    PyObject *writer = run->writer, *container, *last;
    int status = look_up(storing->containers, slot(writer, slots[CONTAINER_ID]), &container);
    if (status > 0)
        status = container == slot(writer, slots[CONTAINER]);
    Py_XDECREF(container);
    run->segment = Py_XNewRef(slot(writer, slots[FOUND]));
    if (status <= 0 || run->segment == Py_None)
        return status < 0 ? -1 : 0;
    if (run->segment == NULL || !Py_IS_TYPE(run->segment, storing->segment))
        return -1;
    run->attributes = Py_XNewRef(slot(run->segment, slots[ATTRIBUTES]));
    run->key = Py_XNewRef(slot(writer, slots[ID_BYTES]));
    status = look_up(run->attributes, run->key, &last);
    if (status > 0 && !number_in(last, INT64_MIN, INT64_MAX, &run->last))
        status = -1;
    Py_XDECREF(last);
    return status;
}

/* Whether nothing is to be decided about a run whose segment was found; -1 if it is declined. */
static int
is_plain(const Storing *storing, Plain *run)
{
    const Py_ssize_t *slots = storing->slots;
    int64_t gate, last, first, number;
    run->number = Py_XNewRef(number_of(run->rows, PyList_GET_SIZE(run->rows) - 1, &number));
    if (run->number == NULL || number_of(run->rows, 0, &first) == NULL ||
        !number_in(slot(run->segment, slots[GATE]), INT64_MIN, INT64_MAX, &gate) ||
        !number_in(slot(run->writer, slots[LAST_STORED]), INT64_MIN, INT64_MAX, &last) ||
        !PyBytes_CheckExact(run->key) || PyBytes_GET_SIZE(run->key) != UUID_BYTES)
        return -1;
    return gate == 0 && run->last == last && first >= last;
}

/* Writes an entry, unless the index knows of as many events: 1; 0 if there is no room or it is declined, -1 with an
   exception. It says where the segment is now; `next_ms` is when the next one is due, and is consumed. */
static int
add_entry(const Storing *storing, PyObject *segment, PyObject *index, PyObject *due_ms, int64_t due, PyObject *next_ms)
{
    const Py_ssize_t *slots = storing->slots;
    PyObject *count = slot(segment, slots[EVENT_COUNT]), *after[CHANGED] = {NULL};
    int64_t length, events = 0;
    Tail tail;
    int status = 0;
    if (next_ms != NULL && number_in(slot(segment, slots[LENGTH]), 0, INT64_MAX, &length) &&
        (count == Py_None || number_in(count, INT64_MIN >> 1, INT64_MAX >> 1, &events)) &&
        open_tail(index, slots, &tail) == 0) {
        int is_new = slot(index, slots[EVENT_COUNT]) == Py_None || events > tail.events;
        int has_room = tail.memory.len - tail.used >= ENTRY_BYTES;
        status = !is_new || (has_room && make_slots(&tail, tail.used + ENTRY_BYTES, events, due_ms, after) == 0);
        if (status > 0 && is_new) {
            unsigned char *to = (unsigned char *)tail.memory.buf + tail.used;
            store64(to, (uint64_t)length);
            store64(to + 8, (uint64_t)events);
            store64(to + 16, (uint64_t)due);
        }
        PyBuffer_Release(&tail.memory);
    }
    if (status == 0) {
        Py_XDECREF(next_ms);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (after[TAIL_USED] != NULL) {
        set_slots(index, slots, after);
        set_slot(index, slots[MAPPED], Py_NewRef(Py_True));
    }
    set_slot(segment, slots[INDEX_DUE_MS], next_ms);
    return 1;
}

/* As Container.update_index if the index that was found last is still there, an entry is due, and nothing is to be
   decided about it or recorded: 1; else 0, or -1 with an exception. */
static int
write_entry(const Storing *storing, const Plain *run)
{
    const Py_ssize_t *slots = storing->slots;
    PyObject *index = slot(run->segment, slots[INDEX]), *due_ms = slot(run->segment, slots[INDEX_DUE_MS]);
    int64_t due, unused;
    if (index == NULL || !Py_IS_TYPE(index, storing->segment) || slot(run->writer, slots[ADD_RECORD]) != Py_None ||
        !number_in(slot(index, slots[GATE]), 0, 0, &unused) ||
        !number_in(slot(index, slots[INDEX_ENTRY_SIZE]), ENTRY_BYTES, ENTRY_BYTES, &unused) ||
        !number_in(due_ms, INT64_MIN, storing->now, &due) || due == 0 || storing->now > INT64_MAX - INDEX_DELAY_MS)
        return 0;
    Py_INCREF(index);
    int status = add_entry(storing, run->segment, index, due_ms, due,
                           PyLong_FromLongLong(storing->now + INDEX_DELAY_MS));
    Py_DECREF(index);
    return status;
}

/* Brings the index up to date before an append: 1, or -1 as above, or AGAIN if Python did. */
static int
update_index(const Storing *storing, const Plain *run)
{
    const Py_ssize_t *slots = storing->slots;
    int64_t due;
    if (!number_in(slot(run->segment, slots[INDEX_DUE_MS]), INT64_MIN, INT64_MAX, &due))
        return -1;
    int status = storing->now < due ? 1 : write_entry(storing, run);
    if (status != 0)
        return status;
    PyObject *container = Py_XNewRef(slot(run->writer, slots[CONTAINER])), *done = NULL;
    if (container != NULL)
        done = PyObject_CallMethodObjArgs(container, storing->update_index, run->segment, storing->now_ms, NULL);
    Py_XDECREF(container);
    Py_XDECREF(done);
    return done == NULL ? -1 : AGAIN;
}

/* Makes the record of a run for the journal; NULL: an exception, or declined if none is set. */
static PyObject *
record_of(const Storing *storing, const Plain *run)
{
    PyObject *number = slot(run->writer, storing->slots[CONTAINER_ID]);
    PyObject *begin = slot(run->writer, storing->slots[RECORD_BEGIN]);
    PyObject *const args[] = {number, begin, run->rows, storing->now_ms, run->key};
    return number == NULL || begin == NULL ? NULL : record_of_rows(NULL, args);
}

/* Gives the record of a run that was stored to the journal, if there is one; -1 with an exception. Takes both. */
static int
add_record(PyObject *journal, PyObject *record)
{
    PyObject *done = record == NULL ? Py_NewRef(Py_None) : PyObject_CallOneArg(journal, record);
    Py_DECREF(journal);
    Py_XDECREF(record);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Makes all changes of a plain run; 1 if it did, 0 if there is no room, -1 as above. No code of Python runs before the
   commit. */
static int
store(const Storing *storing, const Plain *run)
{
    PyObject *after[CHANGED] = {NULL}, *acks = storing->acks, *record = NULL;
    PyObject *journal = slot(run->writer, storing->slots[ADD_RECORD]);
    int64_t last = run->last, length, number;
    Py_ssize_t size = PyByteArray_GET_SIZE(acks);
    if (journal == NULL || !number_in(slot(run->segment, storing->slots[LENGTH]), 0, INT64_MAX, &length))
        return -1;
    int status = prepare(run->segment, storing->slots, run->rows, storing->now_ms, after);
    if (status != 0)
        return status < 0 ? -1 : 0;
    if ((journal != Py_None && (record = record_of(storing, run)) == NULL) ||
        add_acks(storing->acknowledge, run->rows, PyBytes_AS_STRING(run->key), &last, length, acks) < 0) {
        drop(after, CHANGED);
        Py_XDECREF(record);
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError))
            PyErr_Clear(); /* Python raises it again */
        return -1;
    }
    Py_INCREF(journal);
    if (number_in(run->number, last, last, &number)) /* else a number falls within the run */
        status = commit(run->segment, storing->slots, run->attributes, run->key, run->number, after);
    else {
        drop(after, CHANGED);
        status = -1;
    }
    if (status < 0) {
        Py_DECREF(journal);
        Py_XDECREF(record);
        return cut(acks, size);
    }
    if (add_record(journal, record) < 0)
        return cut(acks, size);
    set_slot(run->writer, storing->slots[LAST_STORED], Py_NewRef(run->number));
    return 1;
}

/* Stores a run if it is plain: 1; else 0, AGAIN, or -1 as above. */
static int
store_run(const Storing *storing, PyObject *from, Py_ssize_t *stored)
{
    if (!PyTuple_CheckExact(from) || PyTuple_GET_SIZE(from) != 2 || !PyList_CheckExact(PyTuple_GET_ITEM(from, 1)))
        return -1;
    Plain run = {.writer = PyTuple_GET_ITEM(from, 0), .rows = PyTuple_GET_ITEM(from, 1)};
    if (!Py_IS_TYPE(run.writer, storing->writer))
        return 0;
    PyObject *is_set_up = slot(run.writer, storing->slots[IS_SET_UP]);
    if (is_set_up != Py_True)
        return is_set_up == Py_False ? 0 : -1;
    Py_INCREF(run.writer);
    Py_INCREF(run.rows);
    int status = find_segment(storing, &run);
    if (status > 0)
        status = is_plain(storing, &run);
    if (status > 0)
        status = update_index(storing, &run);
    if (status == 1)
        status = store(storing, &run);
    if (status == 1)
        *stored += PyList_GET_SIZE(run.rows);
    Py_DECREF(run.writer);
    Py_DECREF(run.rows);
    Py_XDECREF(run.segment);
    Py_XDECREF(run.attributes);
    Py_XDECREF(run.key);
    Py_XDECREF(run.number);
    return status;
}

/* The writer of a run, of whatever type; borrowed, NULL if there is no run. */
static PyObject *
writer_at(PyObject *runs, Py_ssize_t at)
{
    PyObject *run = at < PyList_GET_SIZE(runs) ? PyList_GET_ITEM(runs, at) : NULL;
    return run != NULL && PyTuple_CheckExact(run) && PyTuple_GET_SIZE(run) == 2 ? PyTuple_GET_ITEM(run, 0) : NULL;
}

/* The segment that the writer of a run found last; borrowed, NULL if there is none. */
static PyObject *
segment_at(const Storing *storing, PyObject *runs, Py_ssize_t at)
{
    PyObject *writer = writer_at(runs, at), *segment = NULL;
    if (writer != NULL && Py_IS_TYPE(writer, storing->writer))
        segment = slot(writer, storing->slots[FOUND]);
    return segment != NULL && Py_IS_TYPE(segment, storing->segment) ? segment : NULL;
}

/* Prefetches what the runs behind `at` need: with many writers, it is not in the cache. Each run is prefetched in steps,
   because what an object refers to is known only when the object is there: 1. its writer, 2. its segment, 3. what the
   segment has, 4. the writer's number, and where the data goes. */
static void
look_ahead(const Storing *storing, PyObject *runs, Py_ssize_t at)
{
    static const struct {
        int slot;
        Py_ssize_t size;
    } has[] = {
        {ATTRIBUTES, sizeof(PyDictObject)}, {TAIL, sizeof(PyMemoryViewObject)}, {TAIL_USED, sizeof(PyLongObject)},
        {LENGTH, sizeof(PyLongObject)}, {EVENT_COUNT, sizeof(PyLongObject)}, {INDEX_DUE_MS, sizeof(PyLongObject)},
        {INDEX, LINE_BYTES},
    };
    const Py_ssize_t *slots = storing->slots;
    PyObject *writer = writer_at(runs, at + 4), *segment, *attributes, *tail;
    int64_t used;
    if (writer != NULL)
        will_read(writer, storing->writer->tp_basicsize);
    if ((segment = segment_at(storing, runs, at + 3)) != NULL) {
        will_read(segment, storing->segment->tp_basicsize);
        will_read(slot(writer_at(runs, at + 3), slots[ID_BYTES]), sizeof(PyBytesObject));
    }
    if ((segment = segment_at(storing, runs, at + 2)) != NULL)
        for (size_t i = 0; i < sizeof(has) / sizeof(*has); i++)
            will_read(slot(segment, slots[has[i].slot]), has[i].size);
    if ((segment = segment_at(storing, runs, at + 1)) == NULL)
        return;
    if ((attributes = slot(segment, slots[ATTRIBUTES])) != NULL && PyDict_CheckExact(attributes))
        will_read(((PyDictObject *)attributes)->ma_keys, 3 * LINE_BYTES);
    if ((tail = slot(segment, slots[TAIL])) != NULL && PyMemoryView_Check(tail) &&
        number_in(slot(segment, slots[TAIL_USED]), 0, PyMemoryView_GET_BUFFER(tail)->len, &used))
        will_read((char *)PyMemoryView_GET_BUFFER(tail)->buf + used, 2 * LINE_BYTES);
}

/* Stores runs from `at`, which it moves, up to one that is not plain: 0; -1: an exception, or that one is declined. */
static int
store_runs(Storing *storing, PyObject *runs, Py_ssize_t *at, Py_ssize_t *stored)
{
    if (!number_in(storing->now_ms, INT64_MIN, INT64_MAX, &storing->now))
        return -1;
    int status = 1;
    while (status > 0 && *at < PyList_GET_SIZE(runs)) {
        int before = status;
        look_ahead(storing, runs, *at);
        status = store_run(storing, PyList_GET_ITEM(runs, *at), stored);
        if (status == 1)
            (*at)++;
        else if (status == AGAIN && before == AGAIN)
            status = -1;
    }
    return status < 0 ? -1 : 0;
}

/* If a run behind the first is declined, the caller stores it, as one that is not plain. */
PyObject *
store_plain(const Shortcut *self, PyObject *const *args)
{
    Storing storing = {self->types[0], self->types[1], self->slots, self->method, args[2], args[3], args[4], args[5], 0};
    PyObject *runs = args[0];
    int64_t start;
    if (!PyList_CheckExact(runs) || !number_in(args[1], 0, PyList_GET_SIZE(runs), &start) ||
        !Py_IS_TYPE(storing.acknowledge, state_of(self)->acks) || !PyByteArray_CheckExact(storing.acks))
        return NULL;
    Py_ssize_t at = (Py_ssize_t)start, stored = 0;
    if (store_runs(&storing, runs, &at, &stored) < 0 && (PyErr_Occurred() || at == start))
        return NULL;
    return Py_BuildValue("nn", at, stored);
}

/* --- one list of runs, all that a session receives in most reads -------------------------------------------------- */

/* Slots of a session, behind those of a segment and a writer, and what is in its `_plain`. */
enum { OUT = RECORD_BEGIN + 1, OUT_BYTES, PLAIN, REFUSED, SET_UPS };
enum { SERVICE, CONTAINERS, NOW_MS, ACKNOWLEDGE, COUNTERS, NEEDS };
#define FEW_SET_UPS 255 /* of segstore.server.connection.session: after more, it looks through its writers */

/* Queues acknowledgements, if there are any; -1 with an exception. */
static int
queue_acks(PyObject *session, const Py_ssize_t *slots, PyObject *acks)
{
    Py_ssize_t size = PyByteArray_GET_SIZE(acks);
    int64_t before;
    if (size == 0)
        return 0;
    if (!number_in(slot(session, slots[OUT_BYTES]), 0, INT64_MAX - size, &before))
        return PyErr_SetString(PyExc_TypeError, "a session counts bytes"), -1;
    PyObject *frames = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(acks), size);
    PyObject *after = PyLong_FromLongLong(before + size), *out = slot(session, slots[OUT]);
    int status = -1;
    if (frames != NULL && after != NULL && out != NULL && PyList_CheckExact(out))
        status = PyList_Append(out, frames);
    if (status == 0)
        set_slot(session, slots[OUT_BYTES], Py_NewRef(after));
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a session has a list");
    Py_XDECREF(frames);
    Py_XDECREF(after);
    return status;
}

/* Adds to the counter of appends; -1 with an exception. */
static int
count_appends(PyObject *counters, Py_ssize_t stored)
{
    PyObject *before = PyObject_GetAttrString(counters, "appends"), *more = PyLong_FromSsize_t(stored);
    PyObject *after = before == NULL || more == NULL ? NULL : PyNumber_Add(before, more);
    int status = after == NULL ? -1 : PyObject_SetAttrString(counters, "appends", after);
    Py_XDECREF(before);
    Py_XDECREF(more);
    Py_XDECREF(after);
    return status;
}

/* Queues acknowledgements of what was stored. Counts it too, unless an exception is set, which stays. -1 with an
   exception. */
static int
end_runs_of(PyObject *session, const Py_ssize_t *slots, PyObject *counters, PyObject *acks, Py_ssize_t stored)
{
    PyObject *problem = take_exception();
    int status = problem == NULL ? count_appends(counters, stored) : 0;
    if (status == 0)
        status = queue_acks(session, slots, acks);
    if (problem == NULL)
        return status;
    set_exception(problem);
    return -1;
}

/* The objects with which plain runs are stored, borrowed; NULL if the session has ended, has refused an append of this
   read, or has to look through its writers. */
static PyObject *
needs_of(PyObject *session, const Py_ssize_t *slots, PyTypeObject *acks)
{
    PyObject *plain = slot(session, slots[PLAIN]), *refused = slot(session, slots[REFUSED]);
    int64_t set_ups;
    if (plain == NULL || !PyTuple_Check(plain) || PyTuple_GET_SIZE(plain) != NEEDS ||
        !Py_IS_TYPE(PyTuple_GET_ITEM(plain, ACKNOWLEDGE), acks) || refused == NULL || !PyDict_CheckExact(refused) ||
        PyDict_GET_SIZE(refused) > 0 || !number_in(slot(session, slots[SET_UPS]), 0, FEW_SET_UPS, &set_ups))
        return NULL;
    return plain;
}

/* Python goes on with the runs that are not plain. */
PyObject *
receive_all(const Shortcut *self, PyObject *const *args)
{
    PyObject *session = args[0], *items = args[1];
    int64_t start = 0;
    if (!PyObject_TypeCheck(session, self->types[2]) || !PyList_CheckExact(items) || PyList_GET_SIZE(items) != 1 ||
        !PyList_CheckExact(PyList_GET_ITEM(items, 0)) || (args[2] != NULL && !number_in(args[2], 0, 0, &start)))
        return NULL;
    PyObject *plain = Py_XNewRef(needs_of(session, self->slots, state_of(self)->acks));
    if (plain == NULL)
        return NULL;
    PyObject *runs = Py_NewRef(PyList_GET_ITEM(items, 0)), *made = NULL;
    PyObject *counts = PyObject_GetAttr(PyTuple_GET_ITEM(plain, SERVICE), self->other_method), *acks = NULL;
    PyObject *now_ms = counts == Py_None ? PyObject_CallNoArgs(PyTuple_GET_ITEM(plain, NOW_MS)) : NULL;
    Py_ssize_t at = 0, stored = 0;
    if (now_ms != NULL)
        acks = PyByteArray_FromStringAndSize(NULL, 0);
    if (acks != NULL) {
        Storing storing = {self->types[0], self->types[1], self->slots, self->method,
                           PyTuple_GET_ITEM(plain, CONTAINERS), now_ms, PyTuple_GET_ITEM(plain, ACKNOWLEDGE), acks, 0};
        store_runs(&storing, runs, &at, &stored);
        int is_ended = stored == 0 && !PyErr_Occurred()
                           ? 0
                           : end_runs_of(session, self->slots, PyTuple_GET_ITEM(plain, COUNTERS), acks, stored);
        PyObject *left = is_ended < 0 || at == 0 || at == PyList_GET_SIZE(runs)
                             ? NULL
                             : PyList_GetSlice(runs, at, PyList_GET_SIZE(runs));
        if (left != NULL)
            made = PyObject_CallFunction(self->behind, "O[N]iO", session, left, 0, args[3] == NULL ? Py_True : args[3]);
        else if (is_ended == 0 && at > 0 && !PyErr_Occurred())
            made = PyLong_FromLong(1);
    }
    Py_XDECREF(acks);
    Py_XDECREF(now_ms);
    Py_XDECREF(counts);
    Py_DECREF(runs);
    Py_DECREF(plain);
    return made;
}

/* --- records of a journal ---------------------------------------------------------------------------------------- */

/* The bytes in the data of rows, and the number of the last; -1: an exception, or declined if none is set. */
static Py_ssize_t
size_of_rows(PyObject *rows, int64_t *number)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
        PyObject *row = PyList_GET_ITEM(rows, i);
        Py_buffer data;
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 4 ||
            !number_in(PyTuple_GET_ITEM(row, 0), INT64_MIN, INT64_MAX, number) ||
            hold(PyTuple_GET_ITEM(row, 2), &data) < 0)
            return -1;
        int fits = data.len <= MAX_RECORD - size;
        size += fits ? data.len : 0;
        PyBuffer_Release(&data);
        if (!fits)
            return -1;
    }
    return size;
}

/* What is behind the data of a record, RECORD_END bytes: numbers and bytes as msgpack has them. */
static void
end_record(unsigned char *to, int64_t events, int64_t now_ms, const char *writer, int64_t number)
{
    to[0] = to[9] = to[36] = MSGPACK_INT64;
    to[18] = MSGPACK_BIN8;
    to[19] = UUID_BYTES;
    store64(to + 1, (uint64_t)events);
    store64(to + 10, (uint64_t)now_ms);
    memcpy(to + 20, writer, UUID_BYTES);
    store64(to + 37, (uint64_t)number);
}

PyObject *
record_of_rows(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    int64_t log_id, now_ms, number = 0, events = 0;
    PyObject *begin = args[1], *rows = args[2], *writer = args[4];
    if (!number_in(args[0], INT32_MIN, INT32_MAX, &log_id) || !PyBytes_CheckExact(begin) ||
        PyBytes_GET_SIZE(begin) > MAX_RECORD || !PyList_CheckExact(rows) || PyList_GET_SIZE(rows) == 0 ||
        !number_in(args[3], INT64_MIN, INT64_MAX, &now_ms) || !PyBytes_CheckExact(writer) ||
        PyBytes_GET_SIZE(writer) != UUID_BYTES)
        return NULL;
    Py_ssize_t size = size_of_rows(rows, &number), at = HEADER_BYTES + PyBytes_GET_SIZE(begin) + 5, end = at + size;
    PyObject *record = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, end + RECORD_END);
    if (record == NULL)
        return NULL;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(record);
    store32(to, (uint32_t)log_id);
    store32(to + 4, (uint32_t)(end + RECORD_END - HEADER_BYTES));
    memcpy(to + HEADER_BYTES, PyBytes_AS_STRING(begin), PyBytes_GET_SIZE(begin));
    to[at - 5] = MSGPACK_BIN32;
    store32(to + at - 4, (uint32_t)size);
    const Py_buffer memory = {.buf = to, .len = end};
    int status = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows) && status == 0; i++)
        status = copy_row(PyList_GET_ITEM(rows, i), &memory, &at, &events);
    if (status != 0 || at != end) {
        Py_DECREF(record);
        return NULL;
    }
    end_record(to + end, events, now_ms, PyBytes_AS_STRING(writer), number);
    return record;
}
