/* What a store does with appends: copies them into memory and into records of its journal; see segstore.server.store. */

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

/* The slots of a segment, in the order in which Python names them. */
enum { ATTRIBUTES, TAIL, TAIL_USED, LENGTH, EVENT_COUNT, LAST_MODIFIED_MS };

/* Copies the data of rows behind the tail's used bytes and makes the numbers that the segment has then; 1 if there is no
   room for all, -1 if it is declined. */
static int
copy_rows(PyObject *rows, const Py_buffer *memory, PyObject *const *before, PyObject **after)
{
    int64_t used, length, events = 0, count = 0, number;
    PyObject *last = PyList_GET_SIZE(rows) == 0 ? NULL : PyList_GET_ITEM(rows, PyList_GET_SIZE(rows) - 1);
    if (last == NULL || !PyTuple_CheckExact(last) || PyTuple_GET_SIZE(last) != 4 ||
        !number_in(PyTuple_GET_ITEM(last, 0), INT64_MIN, INT64_MAX, &number) ||
        !number_in(before[TAIL_USED], 0, memory->len, &used) ||
        !number_in(before[LENGTH], 0, INT64_MAX - memory->len, &length) ||
        (before[EVENT_COUNT] != Py_None && !number_in(before[EVENT_COUNT], INT64_MIN >> 1, INT64_MAX >> 1, &events)))
        return -1;
    Py_ssize_t at = (Py_ssize_t)used;
    int status = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows) && status == 0; i++) {
        status = copy_row(PyList_GET_ITEM(rows, i), memory, &at, &count);
        if (count < -(INT64_MAX >> 2) || count > INT64_MAX >> 2)
            status = -1;
    }
    if (status != 0)
        return status;
    after[TAIL_USED] = PyLong_FromSsize_t(at);
    after[LENGTH] = PyLong_FromLongLong(length + at - used);
    after[EVENT_COUNT] = PyLong_FromLongLong(events + count);
    return after[TAIL_USED] == NULL || after[LENGTH] == NULL || after[EVENT_COUNT] == NULL ? -1 : 0;
}

PyObject *
append_rows(PyTypeObject *type, const Py_ssize_t *slots, PyObject *const *args)
{
    PyObject *segment = args[0], *writer = args[1], *rows = args[2], *before[LAST_MODIFIED_MS + 1];
    PyObject *after[LAST_MODIFIED_MS + 1] = {NULL};
    int64_t now_ms;
    Py_buffer memory;
    if (!Py_IS_TYPE(segment, type) || !PyBytes_CheckExact(writer) || !PyList_CheckExact(rows) ||
        !number_in(args[3], INT64_MIN, INT64_MAX, &now_ms))
        return NULL;
    PyObject *attributes = slot(segment, slots[ATTRIBUTES]);
    if (attributes == NULL || !PyDict_CheckExact(attributes))
        return NULL;
    Py_INCREF(attributes); /* a key's code may run, and change the segment */
    int has_writer = PyBytes_GET_SIZE(writer) > 0, status = has_writer ? PyDict_Contains(attributes, writer) : 1;
    for (int i = TAIL; i <= LAST_MODIFIED_MS && status > 0; i++)
        if ((before[i] = slot(segment, slots[i])) == NULL)
            status = -1;
    if (status <= 0 || hold_writable(before[TAIL], &memory) < 0) {
        Py_DECREF(attributes);
        return status == 0 ? Py_NewRef(Py_False) : NULL;
    }
    status = copy_rows(rows, &memory, before, after);
    PyBuffer_Release(&memory);
    if (status == 0) {
        PyObject *last = PyList_GET_ITEM(rows, PyList_GET_SIZE(rows) - 1);
        PyObject *number = Py_NewRef(PyTuple_GET_ITEM(last, 0));
        after[LAST_MODIFIED_MS] = Py_NewRef(args[3]);
        if (has_writer)
            status = PyDict_SetItem(attributes, writer, number);
        else
            Py_XSETREF(after[EVENT_COUNT], Py_NewRef(slot(segment, slots[EVENT_COUNT])));
        Py_DECREF(number);
    }
    for (int i = TAIL_USED; i <= LAST_MODIFIED_MS; i++) {
        PyObject **at = (PyObject **)((char *)segment + slots[i]);
        if (status == 0)
            Py_XSETREF(*at, after[i]);
        else
            Py_XDECREF(after[i]);
    }
    Py_DECREF(attributes);
    return status < 0 ? NULL : Py_NewRef(status == 0 ? Py_True : Py_False);
}

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
record_of_rows(PyObject *const *args)
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
