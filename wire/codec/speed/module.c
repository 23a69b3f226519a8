/* The codec of all commands, and the module. */

#include "speed.h"

/* --- Codec ------------------------------------------------------------------------------------------------------- */

static int
codec_init(Codec *self, PyObject *shapes, PyTypeObject *shape_type)
{
    self->no_data = PyBytes_FromStringAndSize(NULL, 0);
    self->by_class = PyDict_New();
    if (self->no_data == NULL || self->by_class == NULL)
        return -1;
    self->int_offset = slot_of(self->made, "int");
    self->safety_offset = slot_of(self->made, "is_safe");
    self->bytes_offset = slot_of(self->made, "bytes");
    if (self->int_offset < 0 || self->safety_offset < 0 || self->bytes_offset < 0)
        return -1;
    if (slot_of(self->uuid, "int") != self->int_offset || !PyType_IsSubtype(self->made, self->uuid)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "two classes of UUIDs are needed, the second one a subclass");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shapes); i++) {
        Shape *shape = (Shape *)PyTuple_GET_ITEM(shapes, i);
        if (!Py_IS_TYPE(shape, shape_type)) {
            PyErr_SetString(PyExc_TypeError, "a codec is made of shapes");
            return -1;
        }
        if (self->shapes[shape->code & 0xFF] != NULL) {
            PyErr_SetString(PyExc_ValueError, "two type codes have the same lowest byte");
            return -1;
        }
        self->shapes[shape->code & 0xFF] = (Shape *)Py_NewRef(shape);
        if (PyDict_SetItem(self->by_class, (PyObject *)shape->cls, (PyObject *)shape) < 0)
            return -1;
    }
    return 0;
}

static PyObject *
codec_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *shapes, *uuid, *made, *safety;
    static char *keywords[] = {"shapes", "uuid", "made", "safety", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O:Codec", keywords, &PyTuple_Type, &shapes, &PyType_Type,
                                     &uuid, &PyType_Type, &made, &safety))
        return NULL;
    State *state = PyType_GetModuleState(type);
    Codec *self = state == NULL ? NULL : (Codec *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->uuid = (PyTypeObject *)Py_NewRef(uuid);
    self->made = (PyTypeObject *)Py_NewRef(made);
    self->safety = Py_NewRef(safety);
    if (codec_init(self, shapes, state->shape) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
codec_dealloc(Codec *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < 256; i++)
        Py_XDECREF(self->shapes[i]);
    for (int i = 0; i < MEMO_ENTRIES; i++)
        Py_XDECREF(self->memo[i].uuid);
    Py_XDECREF(self->by_class);
    Py_XDECREF(self->uuid);
    Py_XDECREF(self->made);
    Py_XDECREF(self->safety);
    Py_XDECREF(self->no_data);
    type->tp_free(self);
    Py_DECREF(type);
}

/* None for what was declined. */
static inline PyObject *
or_none(PyObject *made)
{
    return made == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : made;
}

static PyObject *
codec_decode(Codec *self, PyObject *frame)
{
    return or_none(read_frame(self, frame));
}

static PyObject *
codec_encode(Codec *self, PyObject *command)
{
    return or_none(write_frame(self, command));
}

static PyObject *
codec_encode_parts(Codec *self, PyObject *command)
{
    return or_none(write_parts(self, command));
}

static PyMethodDef codec_methods[] = {
    {"decode", (PyCFunction)codec_decode, METH_O, "decode($self, frame, /)\n--\n\nThe command of a whole frame, or None."},
    {"encode", (PyCFunction)codec_encode, METH_O, "encode($self, command, /)\n--\n\nThe frame of a command, or None."},
    {"encode_parts", (PyCFunction)codec_encode_parts, METH_O,
     "encode_parts($self, command, /)\n--\n\nThe frame of a command as buffers, or None."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot codec_slots[] = {
    {Py_tp_doc, "Codec(shapes, uuid, made, safety)\n--\n\nReads and writes commands. None: what is left to Python."},
    {Py_tp_new, codec_new},
    {Py_tp_dealloc, codec_dealloc},
    {Py_tp_methods, codec_methods},
    {0, NULL},
};

PyType_Spec codec_spec = {
    .name = "segstore._speed.Codec",
    .basicsize = sizeof(Codec),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = codec_slots,
};

/* --- the module -------------------------------------------------------------------------------------------------- */

static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **into)
{
    *into = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *into == NULL ? -1 : PyModule_AddType(module, *into);
}

static int
module_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (add_type(module, &shape_spec, &state->shape) < 0 || add_type(module, &codec_spec, &state->codec) < 0 ||
        add_type(module, &frames_spec, &state->frames) < 0 || add_type(module, &acks_spec, &state->acks) < 0 ||
        add_type(module, &rows_spec, &state->rows) < 0 || add_type(module, &shortcut_spec, &state->shortcut) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "VERSION", SEGSTORE_VERSION);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->shape);
    Py_VISIT(state->codec);
    Py_VISIT(state->frames);
    Py_VISIT(state->acks);
    Py_VISIT(state->rows);
    Py_VISIT(state->shortcut);
    return 0;
}

static int
module_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->shape);
    Py_CLEAR(state->codec);
    Py_CLEAR(state->frames);
    Py_CLEAR(state->acks);
    Py_CLEAR(state->rows);
    Py_CLEAR(state->shortcut);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED}, /* the memo of UUIDs, and values that must not change while they are written */
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "segstore._speed",
    .m_doc = "The codec's accelerator; segstore.wire.codec.speed is what uses it.",
    .m_size = sizeof(State),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC
PyInit__speed(void)
{
    return PyModuleDef_Init(&module);
}
