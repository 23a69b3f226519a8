/* Shapes: the tables that the walkers follow, made from tuples that backend.py compiles.

   Everything that a walker relies on is checked here, once: indices of attributes are inside of their record, offsets
   inside of its memory, elements have at least one byte, records nest finitely. */

#include "speed.h"

static const char *const op_names[OPS] = {
    "int8", "int32", "int64", "flag", "uuid", "number", "member", "constant", "text", "data", "remainder", "zero_run",
    "sized", "tail", "structure", "many", "table",
};

Py_ssize_t
slot_of(PyTypeObject *cls, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)cls, name);
    if (found == NULL)
        return -1;
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type) && PyType_IsSubtype(cls, PyDescr_TYPE(found))) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == Py_T_OBJECT_EX && member->offset >= (Py_ssize_t)sizeof(PyObject) &&
            member->offset <= cls->tp_basicsize - (Py_ssize_t)sizeof(PyObject *))
            offset = member->offset;
    }
    Py_DECREF(found);
    if (offset < 0)
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", cls->tp_name, name);
    return offset;
}

/* --- nodes ------------------------------------------------------------------------------------------------------- */

static void
node_clear(Node *node)
{
    for (Py_ssize_t i = 0; i < node->count; i++)
        node_clear(&node->inner[i]);
    PyMem_Free(node->inner);
    Py_CLEAR(node->object);
    node->inner = NULL;
    node->count = 0;
}

/* Whether the node stands for exactly one value, as elements and what may be missing must. */
static int
is_single(const Node *node)
{
    switch (node->op) {
    case OP_MEMBER:
    case OP_CONSTANT:
    case OP_TABLE:
    case OP_TAIL:
        return 0;
    case OP_SIZED:
        return node->count == 0;
    default:
        return 1;
    }
}

/* NULL, or what is wrong with a node whose fields and inner nodes are set. */
static const char *
fault_of(const Node *node, PyTypeObject *shape_type)
{
    for (Py_ssize_t i = 0; i < node->count; i++) {
        const Node *inner = &node->inner[i];
        int fits = node->op == OP_NUMBER  ? inner->op == OP_MEMBER
                   : node->op == OP_SIZED ? inner->op <= OP_FLAG
                                          : is_single(inner);
        if (!fits)
            return "an inner node of a kind that is not read here";
        if ((inner->attribute >= 0) != (node->op == OP_SIZED || node->op == OP_TABLE))
            return "trailers and columns have an attribute, other inner nodes have none";
    }
    switch (node->op) {
    case OP_TAIL:
    case OP_MANY:
        if (node->count != 1 || node->number < 1)
            return "one inner node and a positive number are needed";
        break;
    case OP_TABLE:
        if (node->count < 1 || node->count > MAX_ATTRIBUTES || node->number < 1)
            return "columns and a positive number are needed";
        break;
    case OP_SIZED:
        if (node->count > 1)
            return "at most one trailer is possible";
        break;
    case OP_NUMBER:
        break;
    case OP_CONSTANT:
    case OP_MEMBER:
        if (node->number < INT32_MIN || node->number > INT32_MAX)
            return "a code of 32 bits is needed";
        break;
    case OP_STRUCTURE:
        if (node->count || !Py_IS_TYPE(node->object, shape_type))
            return "a Shape is needed";
        break;
    default:
        if (node->count)
            return "there can be no inner nodes";
    }
    return NULL;
}

/* Fills a node that is all zero from (op, attribute, number, flags, object, inner nodes). On -1, what was made is
   still to be cleared. */
static int
node_init(Node *node, PyObject *from, Shape *shape, int nesting)
{
    const char *op;
    PyObject *object, *inner;
    if (nesting > MAX_DEPTH) {
        PyErr_SetString(PyExc_ValueError, "nodes are nested too deeply");
        return -1;
    }
    if (!PyTuple_CheckExact(from)) {
        PyErr_SetString(PyExc_TypeError, "a node is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(from, "siniOO!", &op, &node->attribute, &node->number, &node->flags, &object, &PyTuple_Type,
                          &inner))
        return -1;
    node->op = OPS;
    for (int i = 0; i < OPS; i++)
        if (strcmp(op, op_names[i]) == 0)
            node->op = (Op)i;
    if (node->op == OPS || node->attribute < -1 || node->attribute >= shape->attributes || node->flags & ~ALL_FLAGS) {
        PyErr_Format(PyExc_ValueError, "%s has no node %R", shape->cls->tp_name, from);
        return -1;
    }
    node->object = Py_NewRef(object);
    if (PyTuple_GET_SIZE(inner)) {
        node->inner = PyMem_Calloc(PyTuple_GET_SIZE(inner), sizeof(Node));
        if (node->inner == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        for (; node->count < PyTuple_GET_SIZE(inner); node->count++)
            if (node_init(&node->inner[node->count], PyTuple_GET_ITEM(inner, node->count), shape, nesting + 1) < 0) {
                node->count++; /* it is cleared with the others */
                return -1;
            }
    }
    const char *fault = fault_of(node, Py_TYPE(shape));
    if (fault != NULL) {
        PyErr_Format(PyExc_ValueError, "%s: %s", op, fault);
        return -1;
    }
    if (node->op == OP_STRUCTURE && ((Shape *)object)->depth >= shape->depth)
        shape->depth = ((Shape *)object)->depth + 1;
    return 0;
}

/* --- the type ---------------------------------------------------------------------------------------------------- */

/* Marks the attributes that nodes fill; -1 if one is filled twice. */
static int
mark(const Node *node, unsigned *filled)
{
    if (node->attribute >= 0) {
        if (*filled & 1u << node->attribute)
            return -1;
        *filled |= 1u << node->attribute;
    }
    for (Py_ssize_t i = 0; i < node->count; i++)
        if (mark(&node->inner[i], filled) < 0)
            return -1;
    return 0;
}

static int
shape_init(Shape *self, PyObject *names, PyObject *nodes)
{
    for (int i = 0; i < self->attributes; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i)); /* TypeError if it is no text */
        if (name == NULL || (self->slots[i] = slot_of(self->cls, name)) < 0)
            return -1;
        for (int j = 0; j < i; j++)
            if (self->slots[j] == self->slots[i]) {
                PyErr_Format(PyExc_ValueError, "%s.%s is named twice", self->cls->tp_name, name);
                return -1;
            }
    }
    self->node.op = OP_STRUCTURE;
    self->node.attribute = -1;
    Py_ssize_t count = PyTuple_GET_SIZE(nodes);
    self->node.inner = PyMem_Calloc(count ? count : 1, sizeof(Node));
    if (self->node.inner == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        self->node.count = i + 1;
        Node *node = &self->node.inner[i];
        if (node_init(node, PyTuple_GET_ITEM(nodes, i), self, 0) < 0)
            return -1;
        if ((node->attribute >= 0) != (node->op != OP_CONSTANT && node->op != OP_TABLE)) {
            PyErr_Format(PyExc_ValueError, "%s: a node of a record fills an attribute, a constant and a table none",
                         op_names[node->op]);
            return -1;
        }
    }
    unsigned filled = 0;
    if (mark(&self->node, &filled) < 0 || filled != (1u << self->attributes) - 1) {
        PyErr_Format(PyExc_ValueError, "the nodes do not fill each attribute of %s once", self->cls->tp_name);
        return -1;
    }
    if (self->depth > MAX_DEPTH) {
        PyErr_SetString(PyExc_ValueError, "records are nested too deeply");
        return -1;
    }
    Py_ssize_t size = (Py_ssize_t)sizeof(PyObject) + self->attributes * (Py_ssize_t)sizeof(PyObject *);
    if (PyType_IS_GC(self->cls) || PyObject_HasAttrString((PyObject *)self->cls, "__post_init__") ||
        self->cls->tp_basicsize != size) {
        PyErr_Format(PyExc_ValueError, "%s has more than its attributes", self->cls->tp_name);
        return -1;
    }
    if (count > 0)
        return 0;
    unsigned char header[HEADER_BYTES] = {0};
    store32(header, (uint32_t)self->code);
    self->only = PyObject_CallNoArgs((PyObject *)self->cls);
    self->frame = PyBytes_FromStringAndSize((char *)header, HEADER_BYTES);
    return self->only == NULL || self->frame == NULL ? -1 : 0;
}

static PyObject *
shape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *cls, *names, *nodes;
    int code;
    static char *keywords[] = {"cls", "code", "names", "nodes", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!iO!O!:Shape", keywords, &PyType_Type, &cls, &code, &PyTuple_Type,
                                     &names, &PyTuple_Type, &nodes))
        return NULL;
    if (PyTuple_GET_SIZE(names) > MAX_ATTRIBUTES)
        return PyErr_Format(PyExc_ValueError, "more than %d attributes", MAX_ATTRIBUTES);
    Shape *self = (Shape *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->cls = (PyTypeObject *)Py_NewRef(cls);
    self->code = code;
    self->attributes = (int)PyTuple_GET_SIZE(names);
    if (shape_init(self, names, nodes) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
shape_dealloc(Shape *self)
{
    PyTypeObject *type = Py_TYPE(self);
    node_clear(&self->node);
    Py_XDECREF(self->only);
    Py_XDECREF(self->frame);
    Py_XDECREF(self->cls);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot shape_slots[] = {
    {Py_tp_doc, "Shape(cls, code, names, nodes)\n--\n\nThe layout of a record, on the wire and in memory."},
    {Py_tp_new, shape_new},
    {Py_tp_dealloc, shape_dealloc},
    {0, NULL},
};

PyType_Spec shape_spec = {
    .name = "segstore._speed.Shape",
    .basicsize = sizeof(Shape),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = shape_slots,
};
