/* Functions of Python with an equal in C: what encodes and decodes, a hash, and those of the other files.

   C is asked first. What it declines, before it has changed anything, goes to the function of Python with the same
   arguments. */

#include "speed.h"

typedef struct What {
    const char *name;
    PyObject *(*ask)(const Shortcut *, PyObject *const *args); /* NULL without an exception: declined */
    int arguments;
} What;

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

/* --- split_events(data, start, limit, base, make, where, out) ----------------------------------------------------- */

#define EVENT 0 /* the type code in an event's header */

/* Makes whole events. Returns where they end, or -1 with an exception. */
static Py_ssize_t
split(PyObject *const *args, const Py_buffer *data, Py_ssize_t at, int64_t limit, int64_t base)
{
    const unsigned char *bytes = data->buf;
    while (data->len - at >= HEADER_BYTES && load32(bytes + at) == EVENT) {
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
split_events(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    int64_t start, limit, base;
    Py_buffer data;
    if (!PyList_CheckExact(args[6]) || hold(args[0], &data) < 0)
        return NULL;
    PyObject *end = NULL;
    if (number_in(args[1], 0, data.len, &start) && number_in(args[2], 0, INT32_MAX, &limit) &&
        number_in(args[3], 0, INT64_MAX - data.len, &base)) {
        Py_ssize_t at = split(args, &data, (Py_ssize_t)start, limit, base);
        end = at < 0 ? NULL : PyLong_FromSsize_t(at);
    }
    PyBuffer_Release(&data);
    return end;
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

static const What whats[] = {
    {"decode", decode, 1},
    {"encode", encode, 1},
    {"encode_parts", encode_parts, 1},
    {"split_events", split_events, 7},
    {"murmur3_128_low", murmur3_128_low, 2},
    {"whole_frames", whole_frames, 4},
    {"frames_into", frames_into, 6},
};

/* Whether the only keyword is decode's `unknown`, which matters for frames alone that C declines. */
static int
is_unknown_alone(const Shortcut *self, PyObject *names)
{
    return self->what->ask == decode && PyTuple_GET_SIZE(names) == 1 &&
           PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "unknown") == 0;
}

static PyObject *
shortcut_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Shortcut *self = (Shortcut *)callable;
    if (PyVectorcall_NARGS(nargsf) == self->what->arguments && (names == NULL || is_unknown_alone(self, names))) {
        PyObject *made = self->what->ask(self, args);
        if (made != NULL || PyErr_Occurred())
            return made;
    }
    return PyObject_Vectorcall(self->behind, args, nargsf, names);
}

static PyObject *
shortcut_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *codec, *behind;
    const char *name;
    static char *keywords[] = {"codec", "what", "behind", NULL};
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!sO:Shortcut", keywords, state->codec, &codec,
                                                      &name, &behind))
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
    return (PyObject *)self;
}

static int
shortcut_traverse(Shortcut *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->codec);
    Py_VISIT(self->behind);
    Py_VISIT(self->dict);
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
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_XDECREF(self->codec);
    Py_XDECREF(self->behind);
    Py_XDECREF(self->dict);
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
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(Shortcut, weak_references), Py_READONLY, NULL},
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
