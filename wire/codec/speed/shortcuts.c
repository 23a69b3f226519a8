/* Functions of Python with an equal in C: what encodes and decodes, a hash, and those of the other files.

   C is asked first. What it declines, before it has changed anything, goes to the function of Python with the same
   arguments. */

#include "speed.h"

#define MAX_ARGUMENTS 7

typedef struct What {
    const char *name;
    PyObject *(*ask)(const Shortcut *, PyObject *const *args); /* NULL without an exception: declined */
    int arguments, types, slots;
    const char *positions; /* a letter each: u is a UUID in `head`; in `end`, U is a UUID, 4 and 8 are numbers of so many
                              bytes, H is the header of an event */
    const char *method, *other_method;
    int has_head; /* whether `head` has a header at least */
    int owners[MAX_SLOTS]; /* index of the type of each slot */
    int optional; /* how many of the arguments may be missing: they are NULL */
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

#define OF_WRITERS \
    0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, \
        5, 5, 5

/* name, function, arguments, types, slots, positions, methods, has_head, owners, optional */
static const What whats[] = {
    {"decode", decode, 1, 0, 0, "", NULL, NULL, 0},
    {"encode", encode, 1, 0, 0, "", NULL, NULL, 0},
    {"encode_parts", encode_parts, 1, 0, 0, "", NULL, NULL, 0},
    {"add_behind", add_behind, 5, 3, 6, "", NULL, NULL, 0, {0, 0, 0, 0, 2, 2}},
    {"append", append_item, 6, 8, 46, "", NULL, NULL, 0, {OF_WRITERS, 7, 7, 7, 7}, 3},
    {"run_turns", run_turns, 2, 7, 42, "uU4488H", "append", "pop", 1, {OF_WRITERS}},
    {"acknowledge", acknowledge, 3, 10, 44, "U8888", "set_result", "popleft", 0, {OF_WRITERS, 9, 9}},
    {"resolve_stored", resolve_stored, 2, 3, 1, "", "set_result", NULL, 0},
    {"split_events", split_events, 7, 0, 0, "", NULL, NULL, 1},
    {"murmur3_128_low", murmur3_128_low, 2, 0, 0, "", NULL, NULL, 0},
    {"whole_frames", whole_frames, 4, 0, 0, "", NULL, NULL, 0},
    {"frames_into", frames_into, 6, 0, 0, "", NULL, NULL, 0},
    {"add", record_bytes, 6, 3, 24, "", NULL, NULL, 0, {[15] = 1, 1, 1, 1, 1, 1, 1, 1, 1}, 1},
    {"write_and_sync", write_and_sync, 3, 0, 0, "", NULL, NULL, 0},
};

static PyObject *
shortcut_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Shortcut *self = (Shortcut *)callable;
    const What *what = self->what;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (count <= what->arguments && count >= what->arguments - what->optional && names == NULL) {
        PyObject *all[MAX_ARGUMENTS] = {NULL};
        if (what->optional > 0)
            memcpy(all, args, count * sizeof(*all));
        PyObject *made = what->ask(self, what->optional > 0 ? all : args);
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
        PyTuple_GET_SIZE(positions) != (Py_ssize_t)strlen(what->positions))
        return -1;
    for (int i = 0; i < what->types; i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i);
        if (!PyType_Check(type) || ((PyTypeObject *)type)->tp_basicsize < (Py_ssize_t)sizeof(PyVarObject))
            return -1; /* Py_SIZE() of some is read */
        self->types[i] = (PyTypeObject *)Py_NewRef(type);
    }
    for (int i = 0; i < what->slots; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(slots, i));
        if (name == NULL || (self->slots[i] = slot_of(self->types[what->owners[i]], name)) < 0)
            return -1;
    }
    if (what->method != NULL && (self->method = PyUnicode_InternFromString(what->method)) == NULL)
        return -1;
    if (what->other_method != NULL && (self->other_method = PyUnicode_InternFromString(what->other_method)) == NULL)
        return -1;
    Py_ssize_t head = PyBytes_GET_SIZE(self->head), end = PyBytes_GET_SIZE(self->end);
    if (what->has_head && (head < HEADER_BYTES || head > MAX_TEMPLATE))
        return -1;
    if (what->positions[0] != 0 && (end < HEADER_BYTES || end > MAX_TEMPLATE))
        return -1;
    for (int i = 0; what->positions[i] != 0; i++) {
        Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i));
        char kind = what->positions[i];
        Py_ssize_t width = kind == 'u' || kind == 'U' ? UUID_BYTES : kind == 'H' ? HEADER_BYTES : kind - '0';
        if (position < HEADER_BYTES || position > (kind == 'u' ? head : end) - width)
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
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    for (int i = 0; i < MAX_TYPES; i++)
        Py_XDECREF(self->types[i]);
    Py_XDECREF(self->method);
    Py_XDECREF(self->other_method);
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

/* As a function, it is a method of its class's instances. */
static PyObject *
shortcut_get(PyObject *self, PyObject *owner, PyObject *Py_UNUSED(type))
{
    return owner == NULL || owner == Py_None ? Py_NewRef(self) : PyMethod_New(self, owner);
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
    {Py_tp_descr_get, shortcut_get},
    {Py_tp_methods, shortcut_methods},
    {Py_tp_members, shortcut_members},
    {Py_tp_getset, shortcut_getset},
    {0, NULL},
};

PyType_Spec shortcut_spec = {
    .name = "segstore._speed.Shortcut",
    .basicsize = sizeof(Shortcut),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = shortcut_slots,
};
