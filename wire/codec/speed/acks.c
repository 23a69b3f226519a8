/* Frames that acknowledge rows: the equal of `acknowledger` in segstore.wire.blocks.decoder. Each has 64-bit
   numbers and the key, at fixed positions. */

#include "speed.h"

#define MAX_COPIED 8

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    unsigned char head[HEADER_BYTES];
    Py_ssize_t size;                    /* of a frame, header included */
    Py_ssize_t key, number, before, total; /* positions in a frame: the last three are int64 */
    Py_ssize_t of_number, of_data;      /* columns of a row */
    Py_ssize_t copied;
    struct {
        Py_ssize_t at, column; /* an int64 of the frame, and where a row has it */
    } copy[MAX_COPIED];
} Acks;

/* An int64 of a row; -1 with an exception if it is not one. */
static int
number_of(PyObject *row, Py_ssize_t column, int64_t *number)
{
    *number = PyLong_AsLongLong(PyTuple_GET_ITEM(row, column));
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static Py_ssize_t
size_of_data(PyObject *data)
{
    if (PyBytes_CheckExact(data))
        return PyBytes_GET_SIZE(data);
    return PyMemoryView_Check(data) || PyByteArray_CheckExact(data) ? PyObject_Size(data) : -1;
}

/* Whether a row has exact types in all columns that are looked at: no code of theirs runs then. */
static int
is_row(const Acks *self, PyObject *row)
{
    Py_ssize_t size = PyTuple_CheckExact(row) ? PyTuple_GET_SIZE(row) : 0;
    if (self->of_number >= size || self->of_data >= size || !PyLong_CheckExact(PyTuple_GET_ITEM(row, self->of_number)))
        return 0;
    for (Py_ssize_t i = 0; i < self->copied; i++)
        if (self->copy[i].column >= size || !PyLong_CheckExact(PyTuple_GET_ITEM(row, self->copy[i].column)))
            return 0;
    return 1;
}

/* Writes the frames of `rows` to `to`, which has room for one a row; where they end, or NULL with an exception. No code
   of Python runs meanwhile. */
static unsigned char *
write_acks(const Acks *self, PyObject *rows, const char *key, int64_t *before, int64_t total, unsigned char *to)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); i++) {
        PyObject *row = PyList_GET_ITEM(rows, i);
        int64_t number, copied;
        Py_ssize_t size = is_row(self, row) ? size_of_data(PyTuple_GET_ITEM(row, self->of_data)) : -1;
        if (size < 0 || total > INT64_MAX - size) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a row cannot be acknowledged");
            return NULL;
        }
        total += size;
        if (number_of(row, self->of_number, &number) < 0)
            return NULL;
        if (number <= *before)
            continue;
        memcpy(to, self->head, HEADER_BYTES);
        memcpy(to + self->key, key, UUID_BYTES);
        store64(to + self->number, (uint64_t)number);
        store64(to + self->before, (uint64_t)*before);
        store64(to + self->total, (uint64_t)total);
        for (Py_ssize_t j = 0; j < self->copied; j++) {
            if (number_of(row, self->copy[j].column, &copied) < 0)
                return NULL;
            store64(to + self->copy[j].at, (uint64_t)copied);
        }
        *before = number;
        to += self->size;
    }
    return to;
}

/* Adds acknowledgements of rows, a list, to a bytearray, and raises `before` to the number that was acknowledged last.
   key: UUID_BYTES. -1 with an exception: nothing was added. No code of Python runs meanwhile. */
static int
add_acks(const Acks *self, PyObject *rows, const char *key, int64_t *before, int64_t total, PyObject *out)
{
    Py_ssize_t count = PyList_GET_SIZE(rows), size = PyByteArray_GET_SIZE(out);
    if (count > (PY_SSIZE_T_MAX - size) / MAX_FRAME_BYTES) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyByteArray_Resize(out, size + count * self->size) < 0)
        return -1;
    unsigned char *start = (unsigned char *)PyByteArray_AS_STRING(out);
    unsigned char *end = write_acks(self, rows, key, before, total, start + size);
    Py_ssize_t stop = end == NULL ? size : end - start;
    if (stop < PyByteArray_GET_SIZE(out) && PyByteArray_Resize(out, stop) < 0)
        return -1;
    return end == NULL ? -1 : 0;
}

static PyObject *
acks_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (PyVectorcall_NARGS(nargsf) != 5 || names != NULL || !PyList_CheckExact(args[0]) ||
        !PyBytes_CheckExact(args[1]) || PyBytes_GET_SIZE(args[1]) != UUID_BYTES || !PyByteArray_CheckExact(args[4])) {
        PyErr_SetString(PyExc_TypeError,
                        "acknowledge(rows, key, before, total, out) has a list, 16 bytes, two numbers and a bytearray");
        return NULL;
    }
    int64_t before = PyLong_AsLongLong(args[2]), total = PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (add_acks((Acks *)callable, args[0], PyBytes_AS_STRING(args[1]), &before, total, args[4]) < 0)
        return NULL;
    return PyLong_FromLongLong(before);
}

/* --- the type ---------------------------------------------------------------------------------------------------- */

static int
is_inside(const Acks *self, Py_ssize_t at, Py_ssize_t width)
{
    return width <= self->size && at >= HEADER_BYTES && at <= self->size - width;
}

static int
acks_init(Acks *self, PyObject *copied)
{
    int fits = self->size <= MAX_FRAME_BYTES && is_inside(self, self->key, UUID_BYTES) &&
               is_inside(self, self->number, 8) && is_inside(self, self->before, 8) && is_inside(self, self->total, 8) &&
               self->of_number >= 0 && self->of_data >= 0 && PyTuple_GET_SIZE(copied) <= MAX_COPIED;
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(copied); i++, self->copied++) {
        PyObject *from = PyTuple_GET_ITEM(copied, i);
        if (!PyTuple_Check(from))
            return PyErr_Format(PyExc_TypeError, "what is copied is a tuple"), -1;
        if (!PyArg_ParseTuple(from, "nn", &self->copy[i].at, &self->copy[i].column))
            return -1;
        fits = is_inside(self, self->copy[i].at, 8) && self->copy[i].column >= 0;
    }
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "rows cannot be acknowledged in this way");
    return fits ? 0 : -1;
}

static PyObject *
acks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int code;
    PyObject *copied;
    static char *keywords[] = {"code", "size", "key", "number", "before", "total", "of_number", "of_data", "copied", NULL};
    Acks *self = (Acks *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = acks_call;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "innnnnnnO!:Acks", keywords, &code, &self->size, &self->key,
                                     &self->number, &self->before, &self->total, &self->of_number, &self->of_data,
                                     &PyTuple_Type, &copied) ||
        acks_init(self, copied) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    store32(self->head, (uint32_t)code);
    store32(self->head + 4, (uint32_t)(self->size - HEADER_BYTES));
    return (PyObject *)self;
}

static void
acks_dealloc(Acks *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef acks_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Acks, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot acks_slots[] = {
    {Py_tp_doc, "Acks(code, size, key, number, before, total, of_number, of_data, copied)\n--\n\nAcknowledges rows."},
    {Py_tp_new, acks_new},
    {Py_tp_dealloc, acks_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, acks_members},
    {0, NULL},
};

PyType_Spec acks_spec = {
    .name = "segstore._speed.Acks",
    .basicsize = sizeof(Acks),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = acks_slots,
};
