/* Values → bytes.

   A frame is written into memory on the stack; what does not fit in there is counted, and then the frame is written
   again, into memory of its size. So a writer always knows how much room it has, and relies on nothing that it counted.

   Only exact types are taken (int, bool, str, tuple, bytes, bytearray, memoryview, uuid.UUID, the record's own class):
   no code of theirs runs while a frame is written, and so no value changes. All others are Python's. */

#include "speed.h"

#define DECLINED -1
#define STACK_BYTES 2048
#define MAX_PAYLOADS 64 /* in parts; Python writes what has more of them */

/* A payload that is a part of its own, behind the first `at` bytes of the others. */
typedef struct {
    Py_ssize_t at;
    PyObject *data; /* owned */
} Payload;

typedef struct {
    const Codec *codec;
    unsigned char *out;
    Py_ssize_t room;    /* of `out` */
    Py_ssize_t at;      /* bytes so far; those at `room` and above are counted only */
    Py_ssize_t apart;   /* bytes of payloads that are not copied */
    Payload *payloads;  /* NULL: payloads are copied */
    int count;          /* of `payloads` */
} Writer;

/* Where the next `size` bytes go, NULL if they are counted only; `*status` tells of a frame that gets too long. */
static inline unsigned char *
give(Writer *w, Py_ssize_t size, int *status)
{
    Py_ssize_t at = w->at;
    if (size > MAX_FRAME_BYTES - at - w->apart) {
        *status = DECLINED;
        return NULL;
    }
    *status = 0;
    w->at = at + size;
    return w->at <= w->room ? w->out + at : NULL;
}

static int
put(Writer *w, const void *bytes, Py_ssize_t size)
{
    int status;
    unsigned char *to = give(w, size, &status);
    if (to != NULL)
        memcpy(to, bytes, size);
    return status;
}

static int
put32(Writer *w, Py_ssize_t number)
{
    unsigned char bytes[4];
    if (number < INT32_MIN || number > INT32_MAX)
        return DECLINED;
    store32(bytes, (uint32_t)number);
    return put(w, bytes, 4);
}

/* --- values ------------------------------------------------------------------------------------------------------ */

static int
put_integer(Writer *w, PyObject *value, Py_ssize_t size)
{
    if (!PyLong_CheckExact(value))
        return DECLINED;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    long long bound = size == 8 ? 0 : 1LL << (8 * size - 1);
    if (overflow || (bound && (number < -bound || number >= bound)))
        return DECLINED;
    unsigned char bytes[8];
    store64(bytes, (uint64_t)number);
    return put(w, bytes + 8 - size, size);
}

static int
put_flag(Writer *w, PyObject *value)
{
    return value == Py_True ? put(w, "\1", 1) : value == Py_False ? put(w, "\0", 1) : DECLINED;
}

static int
put_uuid(Writer *w, PyObject *value)
{
    const Codec *codec = w->codec;
    if (Py_IS_TYPE(value, codec->made)) {
        PyObject *bytes = slot(value, codec->bytes_offset);
        if (bytes == NULL || !PyBytes_CheckExact(bytes) || PyBytes_GET_SIZE(bytes) != UUID_BYTES)
            return DECLINED;
        return put(w, PyBytes_AS_STRING(bytes), UUID_BYTES);
    }
    PyObject *number = Py_IS_TYPE(value, codec->uuid) ? slot(value, codec->int_offset) : NULL;
    if (number == NULL || !PyLong_CheckExact(number))
        return DECLINED;
    unsigned char bytes[UUID_BYTES];
    if (int_to_16(number, bytes) < 0) {
        PyErr_Clear(); /* out of range */
        return DECLINED;
    }
    return put(w, bytes, UUID_BYTES);
}

static int
put_number(Writer *w, const Node *node, PyObject *value)
{
    for (Py_ssize_t i = 0; i < node->count; i++)
        if (node->inner[i].object == value)
            return put32(w, node->inner[i].number);
    return DECLINED;
}

/* ASCII without NUL, which modified UTF-8 writes in another way. */
static int
put_text(Writer *w, PyObject *value)
{
    if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_ASCII(value))
        return DECLINED;
    Py_ssize_t size = PyUnicode_GET_LENGTH(value);
    const void *text = PyUnicode_1BYTE_DATA(value);
    if (size > UINT16_MAX || memchr(text, 0, size) != NULL)
        return DECLINED;
    unsigned char length[2] = {(unsigned char)(size >> 8), (unsigned char)size};
    return put(w, length, 2) < 0 ? DECLINED : put(w, text, size);
}

/* --- payloads ---------------------------------------------------------------------------------------------------- */

static int
put_apart(Writer *w, PyObject *value, Py_ssize_t size)
{
    if (w->count == MAX_PAYLOADS || size > MAX_FRAME_BYTES - w->at - w->apart)
        return DECLINED;
    w->payloads[w->count++] = (Payload){w->at, Py_NewRef(value)};
    w->apart += size;
    return 0;
}

/* The data, behind `lengths` times its length, the first of which counts `more` bytes in. Returns its size, or
   DECLINED, or -2 with an exception. */
static Py_ssize_t
put_data(Writer *w, PyObject *value, int lengths, Py_ssize_t more)
{
    if (!PyBytes_CheckExact(value) && !PyByteArray_CheckExact(value) && !PyMemoryView_Check(value))
        return DECLINED;
    Py_buffer buffer;
    if (PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE) < 0) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError))
            return -2;
        PyErr_Clear(); /* a view that was released, or that skips bytes */
        return DECLINED;
    }
    Py_ssize_t size = buffer.len;
    int status = size > MAX_FRAME_BYTES ? DECLINED : 0;
    for (int i = lengths; i > 0 && status == 0; i--)
        status = put32(w, i == 2 ? size + more : size);
    if (status == 0)
        status = w->payloads != NULL ? put_apart(w, value, size) : put(w, buffer.buf, size);
    PyBuffer_Release(&buffer);
    return status < 0 ? status : size;
}

static int
put_zeros(Writer *w, PyObject *value)
{
    Py_ssize_t size = PyLong_CheckExact(value) ? PyLong_AsSsize_t(value) : -1;
    if (size < 0) {
        PyErr_Clear(); /* out of range */
        return DECLINED;
    }
    int status;
    unsigned char *to = give(w, size, &status);
    if (to != NULL)
        memset(to, 0, size);
    return status;
}

/* --- nodes ------------------------------------------------------------------------------------------------------- */

static int put_record(Writer *w, const Shape *shape, PyObject *record);

static int
put_value(Writer *w, const Node *node, PyObject *value)
{
    Py_ssize_t status;
    switch (node->op) {
    case OP_INT8:
        return put_integer(w, value, 1);
    case OP_INT32:
        return put_integer(w, value, 4);
    case OP_INT64:
        return put_integer(w, value, 8);
    case OP_FLAG:
        return put_flag(w, value);
    case OP_UUID:
        return put_uuid(w, value);
    case OP_NUMBER:
        return put_number(w, node, value);
    case OP_TEXT:
        return put_text(w, value);
    case OP_DATA:
        if (node->flags & NOT_WRITTEN)
            return put32(w, 0);
        status = put_data(w, value, 1, 0);
        return status < 0 ? (int)status : 0;
    case OP_REMAINDER:
        status = put_data(w, value, 0, 0);
        return status < 0 ? (int)status : 0;
    case OP_SIZED:
        status = put_data(w, value, 2, 4);
        return status < 0 ? (int)status : 0;
    case OP_ZERO_RUN:
        return put_zeros(w, value);
    case OP_TAIL:
        return put_value(w, &node->inner[0], value);
    case OP_STRUCTURE:
        return put_record(w, (Shape *)node->object, value);
    case OP_MANY: {
        if (!PyTuple_CheckExact(value) || put32(w, PyTuple_GET_SIZE(value)) < 0)
            return DECLINED;
        int done = 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value) && done == 0; i++)
            done = put_value(w, &node->inner[0], PyTuple_GET_ITEM(value, i));
        return done;
    }
    default: /* what is no single value, which fault_of() allows in a record only */
        return DECLINED;
    }
}

/* The attribute of a node; a new reference, because it may be replaced while it is written. NULL: declined. */
static PyObject *
attribute_of(const Shape *shape, const Node *node, PyObject *record)
{
    return Py_XNewRef(slot(record, shape->slots[node->attribute]));
}

static int
put_table(Writer *w, const Shape *shape, const Node *node, PyObject *record)
{
    PyObject *columns[MAX_ATTRIBUTES] = {NULL};
    int status = 0;
    Py_ssize_t rows = 0;
    for (Py_ssize_t i = 0; i < node->count && status == 0; i++) {
        columns[i] = attribute_of(shape, &node->inner[i], record);
        if (columns[i] == NULL || !PyTuple_CheckExact(columns[i]))
            status = DECLINED;
        else if (i == 0)
            status = put32(w, rows = PyTuple_GET_SIZE(columns[0]));
        else if (PyTuple_GET_SIZE(columns[i]) != rows)
            status = DECLINED;
    }
    for (Py_ssize_t row = 0; row < rows && status == 0; row++)
        for (Py_ssize_t i = 0; i < node->count && status == 0; i++)
            status = put_value(w, &node->inner[i], PyTuple_GET_ITEM(columns[i], row));
    drop(columns, node->count);
    return status;
}

/* Data with its total and, unless it is empty, the trailer. */
static int
put_with_trailer(Writer *w, const Shape *shape, const Node *node, PyObject *value, PyObject *record)
{
    static const int widths[] = {[OP_INT8] = 1, [OP_INT32] = 4, [OP_INT64] = 8, [OP_FLAG] = 1};
    const Node *trailer = &node->inner[0];
    Py_ssize_t size = put_data(w, value, 2, 4 + widths[trailer->op]);
    if (size <= 0)
        return (int)size;
    PyObject *behind = attribute_of(shape, trailer, record);
    int status = behind == NULL ? DECLINED : put_value(w, trailer, behind);
    Py_XDECREF(behind);
    return status;
}

static int
put_record(Writer *w, const Shape *shape, PyObject *record)
{
    if (!Py_IS_TYPE(record, shape->cls))
        return DECLINED;
    for (Py_ssize_t i = 0; i < shape->node.count; i++) {
        const Node *node = &shape->node.inner[i];
        int status;
        if (node->op == OP_CONSTANT)
            status = put32(w, node->number);
        else if (node->op == OP_TABLE)
            status = put_table(w, shape, node, record);
        else {
            PyObject *value = attribute_of(shape, node, record);
            if (value == NULL)
                return DECLINED;
            status = node->op == OP_SIZED && node->count ? put_with_trailer(w, shape, node, value, record)
                                                         : put_value(w, node, value);
            Py_DECREF(value);
        }
        if (status < 0)
            return status;
    }
    return 0;
}

/* --- frames ------------------------------------------------------------------------------------------------------ */

/* The shape of a command, borrowed from the codec. NULL: an exception, or declined if none is set. */
static const Shape *
shape_of(const Codec *codec, PyObject *command)
{
    return (Shape *)PyDict_GetItemWithError(codec->by_class, (PyObject *)Py_TYPE(command));
}

/* Header and body. -1: an exception, or declined if none is set. */
static int
put_frame(Writer *w, const Shape *shape, PyObject *command)
{
    unsigned char header[HEADER_BYTES] = {0};
    store32(header, (uint32_t)shape->code);
    if (put(w, header, HEADER_BYTES) < 0 || put_record(w, shape, command) < 0)
        return -1;
    if (w->room >= HEADER_BYTES)
        store32(w->out + 4, (uint32_t)(w->at + w->apart - HEADER_BYTES));
    return 0;
}

PyObject *
write_frame(Codec *codec, PyObject *command)
{
    const Shape *shape = shape_of(codec, command);
    if (shape == NULL || shape->frame != NULL)
        return shape == NULL ? NULL : Py_NewRef(shape->frame);
    unsigned char stack[STACK_BYTES];
    Writer w = {codec, stack, STACK_BYTES, 0, 0, NULL, 0};
    if (put_frame(&w, shape, command) < 0)
        return NULL;
    Py_ssize_t size = w.at;
    if (size <= STACK_BYTES)
        return PyBytes_FromStringAndSize((char *)stack, size);
    PyObject *frame = PyBytes_FromStringAndSize(NULL, size);
    if (frame == NULL)
        return NULL;
    Writer again = {codec, (unsigned char *)PyBytes_AS_STRING(frame), size, 0, 0, NULL, 0};
    if (put_frame(&again, shape, command) < 0 || again.at != size)
        Py_CLEAR(frame);
    return frame;
}

/* Payloads and, around them, the bytes between two of them. */
static PyObject *
joined(const Writer *w)
{
    PyObject *parts = PyList_New(0);
    Py_ssize_t at = 0;
    for (int i = 0; i <= w->count && parts != NULL; i++) {
        Py_ssize_t stop = i < w->count ? w->payloads[i].at : w->at;
        PyObject *between = stop > at ? PyBytes_FromStringAndSize((char *)w->out + at, stop - at) : NULL;
        if ((stop > at && (between == NULL || PyList_Append(parts, between) < 0)) ||
            (i < w->count && PyList_Append(parts, w->payloads[i].data) < 0))
            Py_CLEAR(parts);
        Py_XDECREF(between);
        at = stop;
    }
    return parts;
}

PyObject *
write_parts(Codec *codec, PyObject *command)
{
    const Shape *shape = shape_of(codec, command);
    if (shape == NULL)
        return NULL;
    unsigned char stack[STACK_BYTES];
    Payload payloads[MAX_PAYLOADS];
    Writer w = {codec, stack, STACK_BYTES, 0, 0, payloads, 0};
    PyObject *parts = NULL;
    if (put_frame(&w, shape, command) == 0 && w.at <= STACK_BYTES) /* else it is one of many small fields, which Python joins */
        parts = joined(&w);
    for (int i = 0; i < w.count; i++)
        Py_DECREF(payloads[i].data);
    return parts;
}
