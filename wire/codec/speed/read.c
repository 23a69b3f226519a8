/* Bytes → values.

   A function that reads checks its bytes against r->end before it looks at them, and moves r->at by no more than it has
   checked; so 0 <= r->at <= r->end always holds. Sizes from the wire are compared with what is left, never added to a
   position first. */

#include "speed.h"

#define DECLINED -1

static inline Py_ssize_t
left(const Reader *r)
{
    return r->end - r->at;
}

/* The next `size` bytes, which it goes past; NULL if there are fewer. */
static inline const unsigned char *
take(Reader *r, Py_ssize_t size)
{
    if (size > left(r))
        return NULL;
    const unsigned char *from = r->bytes + r->at;
    r->at += size;
    return from;
}

void
drop(PyObject **values, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        Py_CLEAR(values[i]);
}

/* --- payloads ---------------------------------------------------------------------------------------------------- */

int
hold(PyObject *owner, Py_buffer *buffer)
{
    if (!PyBytes_CheckExact(owner) && !PyByteArray_CheckExact(owner) && !PyMemoryView_Check(owner))
        return -1;
    if (PyObject_GetBuffer(owner, buffer, PyBUF_ND | PyBUF_FORMAT) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_MemoryError))
            PyErr_Clear(); /* a view that was released, or that skips bytes */
        return -1;
    }
    if (buffer->ndim == 1 && (buffer->format == NULL || strcmp(buffer->format, "B") == 0))
        return 0;
    PyBuffer_Release(buffer);
    return -1;
}

int
hold_writable(PyObject *owner, Py_buffer *buffer)
{
    if (hold(owner, buffer) < 0)
        return -1;
    if (!buffer->readonly)
        return 0;
    PyBuffer_Release(buffer);
    return -1;
}

/* As view[start:start + size], without a slice and two ints: a new view's buffer and shape are its own. The view is one
   of bytes (see hold()), and 0 <= start <= start + size <= its length. */
static PyObject *
part_of(PyObject *view, Py_ssize_t start, Py_ssize_t size)
{
    assert(start >= 0 && size >= 0 && start <= PyMemoryView_GET_BUFFER(view)->len - size);
    PyObject *made = PyMemoryView_FromObject(view);
    if (made != NULL) {
        Py_buffer *part = PyMemoryView_GET_BUFFER(made);
        part->buf = (char *)part->buf + start;
        part->len = part->shape[0] = size;
    }
    return made;
}

PyObject *
payload_of(Reader *r, Py_ssize_t start, Py_ssize_t size)
{
    if (size < r->copied)
        return PyBytes_FromStringAndSize((const char *)r->bytes + start, size);
    if (r->view == NULL && (r->view = PyMemoryView_FromObject(r->owner)) == NULL)
        return NULL;
    return part_of(r->view, start, size);
}

/* --- texts ------------------------------------------------------------------------------------------------------- */

static int
is_ascii(const unsigned char *from, Py_ssize_t size)
{
    uint64_t seen = 0, eight;
    for (; size >= 8; from += 8, size -= 8) {
        memcpy(&eight, from, 8);
        seen |= eight;
    }
    for (; size > 0; from++, size--)
        seen |= (uint64_t)*from;
    return (seen & 0x8080808080808080u) == 0;
}

static PyObject *
read_text(Reader *r)
{
    const unsigned char *from = take(r, 2);
    if (from == NULL)
        return NULL;
    Py_ssize_t size = from[0] << 8 | from[1];
    from = take(r, size);
    PyObject *text = from == NULL ? NULL : PyUnicode_New(size, 127);
    if (text == NULL)
        return NULL;
    memcpy(PyUnicode_1BYTE_DATA(text), from, size);
    if (!is_ascii(PyUnicode_1BYTE_DATA(text), size)) /* of the copy: the bytes may change meanwhile */
        Py_CLEAR(text);
    return text;
}

/* --- UUIDs ------------------------------------------------------------------------------------------------------- */

static PyObject *
make_uuid(const Codec *codec, const unsigned char *from)
{
    PyObject *number = int_of_16(from), *bytes = PyBytes_FromStringAndSize((const char *)from, UUID_BYTES);
    PyObject *made = number == NULL || bytes == NULL ? NULL : codec->made->tp_alloc(codec->made, 0);
    if (made == NULL) {
        Py_XDECREF(number);
        Py_XDECREF(bytes);
        return NULL;
    }
    /* A new object's slots are empty, so nothing is overwritten. */
    *(PyObject **)((char *)made + codec->int_offset) = number;
    *(PyObject **)((char *)made + codec->bytes_offset) = bytes;
    *(PyObject **)((char *)made + codec->safety_offset) = Py_NewRef(codec->safety);
    return made;
}

/* A memo of recent UUIDs saves three allocations. An entry is replaced, never chained: ids chosen by a peer can at
   most make the memo useless. The key is a copy: the bytes may change meanwhile. */
static PyObject *
read_uuid(Reader *r)
{
    unsigned char key[UUID_BYTES];
    const unsigned char *from = take(r, UUID_BYTES);
    if (from == NULL)
        return NULL;
    memcpy(key, from, UUID_BYTES);
    uint64_t hash = ((uint64_t)load64(key) ^ (uint64_t)load64(key + 8)) * 0x9E3779B97F4A7C15u;
    Memo *memo = &r->codec->memo[(hash >> 32) % MEMO_ENTRIES];
    if (memo->uuid != NULL && memcmp(memo->key, key, UUID_BYTES) == 0)
        return Py_NewRef(memo->uuid);
    PyObject *made = make_uuid(r->codec, key);
    if (made != NULL) {
        memcpy(memo->key, key, UUID_BYTES);
        Py_XSETREF(memo->uuid, Py_NewRef(made));
    }
    return made;
}

/* --- nodes ------------------------------------------------------------------------------------------------------- */

static PyObject *
read_data(Reader *r, const Node *node)
{
    if (node->flags & OPTIONAL && left(r) < 4)
        return Py_NewRef(r->codec->no_data);
    const unsigned char *from = take(r, 4);
    if (from == NULL)
        return NULL;
    int32_t size = load32(from);
    if (size == 0 || (size < 0 && node->flags & NEGATIVE_IS_EMPTY))
        return Py_NewRef(r->codec->no_data);
    Py_ssize_t start = r->at;
    return size < 0 || take(r, size) == NULL ? NULL : payload_of(r, start, size);
}

static PyObject *
read_number(Reader *r, const Node *node)
{
    const unsigned char *from = take(r, 4);
    if (from == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < node->count; i++)
        if (node->inner[i].number == load32(from))
            return Py_NewRef(node->inner[i].object);
    return Py_NewRef(node->object);
}

/* The count of a list whose elements have at least `smallest` bytes, which may be allocated; -1 if declined. */
static Py_ssize_t
read_count(Reader *r, const Node *node)
{
    const unsigned char *from = take(r, 4);
    if (from == NULL)
        return DECLINED;
    Py_ssize_t count = load32(from);
    if (count < 0)
        return node->flags & NEGATIVE_IS_EMPTY ? 0 : DECLINED;
    return count > left(r) / node->number || count > r->most_elements ? DECLINED : count;
}

static PyObject *read_value(Reader *r, const Node *node);
static int skip_record(Reader *r, const Shape *shape);

static int
skip(Reader *r, Py_ssize_t size)
{
    return size < 0 || take(r, size) == NULL ? DECLINED : 0;
}

/* Goes past a value that read_value() would take; 0, or -1 if it would decline. */
static int
skip_value(Reader *r, const Node *node)
{
    const unsigned char *from;
    switch (node->op) {
    case OP_INT8:
    case OP_FLAG:
        return skip(r, 1);
    case OP_INT32:
    case OP_NUMBER:
        return skip(r, 4);
    case OP_INT64:
        return skip(r, 8);
    case OP_UUID:
        return skip(r, UUID_BYTES);
    case OP_CONSTANT:
        return (from = take(r, 4)) == NULL || load32(from) != node->number ? DECLINED : 0;
    case OP_TEXT: {
        Py_ssize_t size = (from = take(r, 2)) == NULL ? DECLINED : from[0] << 8 | from[1];
        return skip(r, size) < 0 || !is_ascii(from + 2, size) ? DECLINED : 0;
    }
    case OP_DATA: {
        if (node->flags & OPTIONAL && left(r) < 4)
            return 0;
        int32_t size = (from = take(r, 4)) == NULL ? DECLINED : load32(from);
        return from != NULL && size < 0 && node->flags & NEGATIVE_IS_EMPTY ? 0 : skip(r, size);
    }
    case OP_SIZED: {
        Py_ssize_t available = left(r);
        if ((from = take(r, 8)) == NULL || (load32(from + 4) != 0 && load32(from) > available))
            return DECLINED;
        int32_t size = load32(from + 4);
        return size == 0 ? 0 : skip(r, size) < 0 || (node->count && skip_value(r, &node->inner[0]) < 0) ? DECLINED : 0;
    }
    case OP_STRUCTURE:
        return skip_record(r, (Shape *)node->object);
    case OP_TAIL:
        return left(r) >= node->number ? skip_value(r, &node->inner[0]) : 0;
    case OP_REMAINDER:
    case OP_ZERO_RUN:
        r->at = r->end;
        return 0;
    default: /* lists in lists, which there are none of */
        return DECLINED;
    }
}

static int
skip_record(Reader *r, const Shape *shape)
{
    for (Py_ssize_t i = 0; i < shape->node.count; i++)
        if (skip_value(r, &shape->node.inner[i]) < 0)
            return DECLINED;
    return 0;
}

static PyObject *
read_many(Reader *r, const Node *node)
{
    Py_ssize_t count = read_count(r, node);
    PyObject *made = count < 0 ? NULL : new_tuple(count);
    for (Py_ssize_t i = 0; i < count && made != NULL; i++) {
        PyObject *element = read_value(r, &node->inner[0]);
        if (element == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, element);
    }
    if (made != NULL)
        show_tuple(made);
    return made;
}

static int
read_table(Reader *r, const Node *node, PyObject **values)
{
    Py_ssize_t count = read_count(r, node);
    if (count < 0)
        return -1;
    for (Py_ssize_t i = 0; i < node->count; i++)
        if ((values[node->inner[i].attribute] = new_tuple(count)) == NULL)
            return -1;
    for (Py_ssize_t row = 0; row < count; row++)
        for (Py_ssize_t i = 0; i < node->count; i++) {
            PyObject *element = read_value(r, &node->inner[i]);
            if (element == NULL)
                return -1;
            PyTuple_SET_ITEM(values[node->inner[i].attribute], row, element);
        }
    for (Py_ssize_t i = 0; i < node->count; i++)
        show_tuple(values[node->inner[i].attribute]);
    return 0;
}

/* The data alone; `values` gets the trailer, if the node has one. */
static PyObject *
read_sized(Reader *r, const Node *node, PyObject **values)
{
    Py_ssize_t available = left(r);
    const unsigned char *from = take(r, 8);
    if (from == NULL)
        return NULL;
    int32_t total = load32(from), size = load32(from + 4);
    const Node *trailer = node->count ? &node->inner[0] : NULL;
    if (size == 0) {
        if (trailer != NULL)
            values[trailer->attribute] = Py_NewRef(node->object);
        return Py_NewRef(r->codec->no_data);
    }
    Py_ssize_t start = r->at;
    if (size < 0 || total > available || take(r, size) == NULL)
        return NULL;
    if (trailer != NULL && (values[trailer->attribute] = read_value(r, trailer)) == NULL)
        return NULL;
    return payload_of(r, start, size);
}

static PyObject *
read_value(Reader *r, const Node *node)
{
    const unsigned char *from;
    switch (node->op) {
    case OP_INT8:
        return (from = take(r, 1)) == NULL ? NULL : PyLong_FromLong((signed char)*from);
    case OP_INT32:
        return (from = take(r, 4)) == NULL ? NULL : PyLong_FromLong(load32(from));
    case OP_INT64:
        return (from = take(r, 8)) == NULL ? NULL : PyLong_FromLongLong(load64(from));
    case OP_FLAG:
        return (from = take(r, 1)) == NULL ? NULL : PyBool_FromLong(*from);
    case OP_UUID:
        return read_uuid(r);
    case OP_NUMBER:
        return read_number(r, node);
    case OP_TEXT:
        return read_text(r);
    case OP_DATA:
        return read_data(r, node);
    case OP_REMAINDER: {
        Py_ssize_t start = r->at, size = left(r);
        r->at = r->end;
        return payload_of(r, start, size);
    }
    case OP_ZERO_RUN: {
        Py_ssize_t size = left(r);
        r->at = r->end;
        return PyLong_FromSsize_t(size);
    }
    case OP_SIZED:
        return read_sized(r, node, NULL);
    case OP_STRUCTURE:
        return read_record(r, (Shape *)node->object);
    case OP_MANY:
        return read_many(r, node);
    case OP_TAIL:
        if (left(r) >= node->number)
            return read_value(r, &node->inner[0]);
        return Py_NewRef(node->object);
    default: /* what is no single value, which fault_of() allows in a record only */
        return NULL;
    }
}

int
read_attributes(Reader *r, const Shape *shape, PyObject **values)
{
    for (int i = 0; i < shape->attributes; i++)
        values[i] = NULL;
    for (Py_ssize_t i = 0; i < shape->node.count; i++) {
        const Node *node = &shape->node.inner[i];
        const unsigned char *from;
        int done;
        if (node->op == OP_CONSTANT)
            done = (from = take(r, 4)) == NULL || load32(from) != node->number ? -1 : 0;
        else if (node->op == OP_TABLE)
            done = read_table(r, node, values);
        else {
            PyObject *value = node->op == OP_SIZED ? read_sized(r, node, values) : read_value(r, node);
            values[node->attribute] = value;
            done = value == NULL ? -1 : 0;
        }
        if (done < 0) {
            drop(values, shape->attributes);
            return -1;
        }
    }
    return 0;
}

PyObject *
read_record(Reader *r, const Shape *shape)
{
    if (shape->only != NULL)
        return Py_NewRef(shape->only);
    PyObject *values[MAX_ATTRIBUTES];
    if (read_attributes(r, shape, values) < 0)
        return NULL;
    PyObject *made = shape->cls->tp_alloc(shape->cls, 0);
    if (made == NULL)
        drop(values, shape->attributes);
    else
        for (int i = 0; i < shape->attributes; i++) /* its slots are empty, so nothing is overwritten */
            *(PyObject **)((char *)made + shape->slots[i]) = values[i];
    return made;
}

PyObject *
read_frame(Codec *codec, PyObject *frame)
{
    Py_buffer buffer;
    if (hold(frame, &buffer) < 0)
        return NULL;
    PyObject *made = NULL;
    const unsigned char *bytes = buffer.buf;
    if (buffer.len >= HEADER_BYTES && load32(bytes + 4) == buffer.len - HEADER_BYTES) {
        const Shape *shape = shape_of_code(codec, load32(bytes));
        Reader r = {codec, frame, bytes, HEADER_BYTES, buffer.len, PY_SSIZE_T_MAX, 0, NULL};
        if (shape != NULL)
            made = read_record(&r, shape);
        Py_XDECREF(r.view);
    }
    PyBuffer_Release(&buffer);
    return made;
}

/* --- spans ------------------------------------------------------------------------------------------------------- */

Py_ssize_t
span_count(const Shape *shape)
{
    Py_ssize_t count = shape->node.count;
    for (Py_ssize_t i = 0; i < shape->node.count; i++)
        if (shape->node.inner[i].op == OP_STRUCTURE)
            count += span_count((const Shape *)shape->node.inner[i].object);
    return count;
}

static int
find(Reader *r, const Shape *shape, Span **next)
{
    for (Py_ssize_t i = 0; i < shape->node.count; i++) {
        const Node *node = &shape->node.inner[i];
        Span *span = (*next)++;
        int status = 0, is_there = node->op == OP_TAIL && left(r) >= node->number;
        span->node = is_there ? &node->inner[0] : node;
        span->at = r->at;
        if (node->op == OP_STRUCTURE)
            status = find(r, (const Shape *)node->object, next);
        else if (node->op == OP_SIZED)
            return -1;
        else if (is_there || node->op != OP_TAIL)
            status = skip_value(r, span->node);
        if (status < 0)
            return -1;
        span->size = r->at - span->at;
    }
    return 0;
}

int
find_spans(const unsigned char *bytes, Py_ssize_t at, Py_ssize_t end, const Shape *shape, Span *spans)
{
    Reader r = {.bytes = bytes, .at = at, .end = end};
    return find(&r, shape, &spans);
}
