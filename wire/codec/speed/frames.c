/* Frames one after another: the equal of `frames_of` in segstore.wire.codec.framing, with the same arguments and the
   same result, which also finds runs of whole appends and of acknowledgements. What it declines goes to `slow`, a
   function of Python, which raises the error if there is one; where that is None, only runs are taken. */

#include "speed.h"

#define COPIED_BYTES 449 /* data of a row with fewer is copied: a bytes object with it is still a small one */
#define MAX_COLUMNS 8

/* A column of a row: the block's data, or a number of the end. */
typedef struct {
    Op op;         /* OP_DATA, OP_INT32 or OP_INT64 */
    Py_ssize_t at; /* of a number, from the start of the end's frame */
} Column;

/* A block and the end behind it that are one row of a record: see `Joined` in segstore.wire.codec.joining. All positions
   are counted from the start of a frame, and are inside of it: join_init() checks them. */
typedef struct {
    PyTypeObject *record; /* owned; NULL: nothing is joined */
    int32_t block, end;   /* type codes */
    Py_ssize_t last;      /* offset in a record: its last number */
    Py_ssize_t head;      /* bytes of the block before its data */
    Py_ssize_t end_bytes; /* of the end, with all that today's peers send and without data */
    Py_ssize_t alike_in_block, alike_in_end; /* the UUID that both have, which is the record's key */
    Py_ssize_t sized;     /* in the end: int32, bytes of the block's data */
    Py_ssize_t own;       /* in the end: int32, bytes of its own data */
    Py_ssize_t number;    /* in the end: int64, which does not fall */
    Py_ssize_t count;     /* in the end: int32, above 0 */
    Py_ssize_t columns;
    Column column[MAX_COLUMNS];
    unsigned char changes[256]; /* by the lowest byte of a code: whether such a command may change records */
} Join;

/* Frames of one length and command that may come as one value. */
typedef struct {
    PyObject *make;     /* owned, or NULL: takes a view of several such frames */
    unsigned char head[HEADER_BYTES];
    Py_ssize_t size;    /* header included */
    Py_ssize_t most;    /* frames in one */
} Run;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Codec *codec; /* owned */
    unsigned char light[256]; /* by the lowest byte of the code: takes no time, however long */
    Py_ssize_t most_elements;
    Join join;
    Run run;
} Frames;

/* What one call works on. */
typedef struct {
    Frames *self;
    PyObject *view;             /* borrowed memoryview */
    const unsigned char *bytes; /* of the view */
    Py_ssize_t at, end, limit;  /* position, where the bytes end, longest body */
    PyObject *slow;             /* borrowed: decodes a frame that is declined; None: only runs are taken */
    PyObject *out;              /* borrowed list */
    PyObject *records;          /* borrowed dict: 16 bytes → record; or NULL */
    int changed;                /* records may be out of date */
    PyObject *runs, *rows;      /* owned lists, or NULL: the runs at the end of `out`, and the rows of the last one */
    PyObject *record;           /* owned, or NULL: of the last run */
    unsigned char key[UUID_BYTES]; /* of `record`, valid while it is set, */
    int64_t last;                  /* and its number; end_runs() clears it before a command may change records */
} Loop;

static int
append(PyObject *out, PyObject *made)
{
    if (made == NULL)
        return -1;
    int status = PyList_Append(out, made);
    Py_DECREF(made);
    return status;
}

static void
end_runs(Loop *loop)
{
    Py_CLEAR(loop->runs);
    Py_CLEAR(loop->rows);
    Py_CLEAR(loop->record);
}

/* Several frames that begin at the position as one value. Returns 1 if it was so, 0 if not, -1 with an exception. */
static int
take_run(Loop *loop)
{
    const Run *run = &loop->self->run;
    Py_ssize_t count = 0, at = loop->at;
    while (count < run->most && loop->end - at >= run->size &&
           memcmp(loop->bytes + at, run->head, HEADER_BYTES) == 0) {
        count++;
        at += run->size;
    }
    if (count < 2)
        return 0;
    end_runs(loop);
    PyObject *rows = PySequence_GetSlice(loop->view, loop->at, at);
    PyObject *made = rows == NULL ? NULL : PyObject_CallOneArg(run->make, rows);
    Py_XDECREF(rows);
    loop->at = at;
    return append(loop->out, made) < 0 ? -1 : 1;
}

/* The record of a key, a new reference, and its number; NULL if there is none, or with an exception. */
static PyObject *
record_of(const Loop *loop, const unsigned char *key, int64_t *last)
{
    const Join *join = &loop->self->join;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)key, UUID_BYTES);
    PyObject *record = bytes == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(loop->records, bytes));
    Py_XDECREF(bytes);
    if (record != NULL && (!PyObject_TypeCheck(record, join->record) ||
                           !number_in(slot(record, join->last), INT64_MIN, INT64_MAX, last)))
        Py_CLEAR(record);
    return record;
}

/* The last run becomes one of `record`; -1 with an exception. */
static int
begin_run(Loop *loop, PyObject *record, const unsigned char *key, int64_t last)
{
    memcpy(loop->key, key, UUID_BYTES);
    loop->last = last;
    if (loop->runs == NULL) {
        loop->runs = PyList_New(0);
        if (loop->runs == NULL || PyList_Append(loop->out, loop->runs) < 0)
            return -1;
    }
    Py_XSETREF(loop->record, Py_NewRef(record));
    Py_XSETREF(loop->rows, PyList_New(0));
    PyObject *run = loop->rows == NULL ? NULL : PyTuple_Pack(2, record, loop->rows);
    return run == NULL ? -1 : append(loop->runs, run);
}

/* Adds the block and the end, which is at `end` and has this event number, to the rows; -1 with an exception. */
static int
add_row(Loop *loop, Py_ssize_t stop, const unsigned char *end, int64_t event_number)
{
    const Join *join = &loop->self->join;
    Py_ssize_t start = loop->at + join->head;
    Reader r = {.codec = loop->self->codec, .owner = loop->view, .bytes = loop->bytes, .copied = COPIED_BYTES,
                .view = loop->view};
    PyObject *number = PyLong_FromLongLong(event_number);
    PyObject *row = number == NULL ? NULL : new_tuple(join->columns);
    for (Py_ssize_t i = 0; i < join->columns && row != NULL; i++) {
        const Column *column = &join->column[i];
        PyObject *cell = column->op == OP_DATA              ? payload_of(&r, start, stop - start)
                         : column->op == OP_INT32           ? PyLong_FromLong(load32(end + column->at))
                         : column->at == join->number       ? Py_NewRef(number)
                                                            : PyLong_FromLongLong(load64(end + column->at));
        if (cell == NULL)
            Py_CLEAR(row);
        else
            PyTuple_SET_ITEM(row, i, cell);
    }
    if (row != NULL)
        show_tuple(row);
    int status = append(loop->rows, row);
    if (status == 0) {
        PyObject **last = (PyObject **)((char *)loop->record + join->last);
        Py_XSETREF(*last, Py_NewRef(number));
        loop->last = event_number;
    }
    Py_XDECREF(number);
    return status;
}

/* The block from the position to `stop` and the end behind it as a row of the record that has their key; results as
   above. */
static int
take_joined(Loop *loop, Py_ssize_t stop)
{
    const Join *join = &loop->self->join;
    const unsigned char *block = loop->bytes + loop->at, *end = loop->bytes + stop;
    if (loop->end - stop < join->end_bytes || stop - loop->at < join->head || load32(end) != join->end ||
        load32(end + 4) != join->end_bytes - HEADER_BYTES || join->end_bytes - HEADER_BYTES > loop->limit ||
        load32(end + join->own) != 0 || load32(end + join->sized) != stop - loop->at - join->head ||
        memcmp(block + join->alike_in_block, end + join->alike_in_end, UUID_BYTES) != 0)
        return 0;
    const unsigned char *key = end + join->alike_in_end;
    int same_record = loop->record != NULL && memcmp(loop->key, key, UUID_BYTES) == 0;
    int64_t number = load64(end + join->number), last = loop->last;
    PyObject *record = same_record ? Py_NewRef(loop->record) : record_of(loop, key, &last);
    if (record == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int is_valid = number >= last && load32(end + join->count) > 0;
    int status = !is_valid || same_record ? 0 : begin_run(loop, record, key, last);
    Py_DECREF(record);
    if (!is_valid)
        return 0;
    if (status < 0 || add_row(loop, stop, end, number) < 0)
        return -1;
    loop->at = stop + join->end_bytes;
    return 1;
}

/* The frame of a code at the position, which ends at `stop`. Returns 1 if it was light, 0 if not, -1 with an exception. */
static int
take_frame(Loop *loop, int32_t code, Py_ssize_t stop)
{
    Frames *self = loop->self;
    Reader r = {self->codec, loop->view, loop->bytes, loop->at + HEADER_BYTES, stop, self->most_elements, 0,
                Py_NewRef(loop->view)};
    const Shape *shape = shape_of_code(self->codec, code);
    PyObject *made = shape == NULL ? NULL : read_record(&r, shape);
    Py_DECREF(r.view);
    int light = shape != NULL && self->light[code & 0xFF];
    if (made == NULL && !PyErr_Occurred())
        made = PyObject_CallFunction(loop->slow, "Oinn", loop->view, code, loop->at + HEADER_BYTES, stop);
    loop->at = stop;
    return append(loop->out, made) < 0 ? -1 : light;
}

/* How many frames it took, or -1 with an exception. */
static Py_ssize_t
run_loop(Loop *loop, Py_ssize_t most, Py_ssize_t heavy)
{
    const Frames *self = loop->self;
    for (Py_ssize_t taken = 0; taken < most; taken++) {
        if (loop->end - loop->at < HEADER_BYTES)
            return taken;
        const unsigned char *header = loop->bytes + loop->at;
        int32_t code = load32(header);
        Py_ssize_t length = (uint32_t)load32(header + 4); /* a negative one is a very long one, as for the reference */
        if (length > loop->end - loop->at - HEADER_BYTES || length > loop->limit)
            return taken;
        Py_ssize_t start = loop->at, stop = start + HEADER_BYTES + length;
        int status = 0;
        if (self->run.make != NULL && memcmp(header, self->run.head, HEADER_BYTES) == 0)
            status = take_run(loop);
        else if (loop->records != NULL && code == self->join.block) {
            if (loop->changed && PyList_GET_SIZE(loop->out) > 0)
                return taken;
            status = loop->changed ? 0 : take_joined(loop, stop);
        }
        if (status == 0 && loop->slow == Py_None)
            return taken;
        if (status == 0) {
            end_runs(loop);
            loop->changed |= self->join.changes[code & 0xFF];
            status = take_frame(loop, code, stop);
            if (status == 0 && stop - start > heavy)
                return taken + 1;
        }
        if (status < 0)
            return -1;
    }
    return most;
}

static PyObject *
frames_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (PyVectorcall_NARGS(nargsf) != 10 || names != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "frames(view, start, end, limit, slow, out, most, heavy, records, changed) has 10 arguments");
        return NULL;
    }
    Frames *self = (Frames *)callable;
    PyObject *view = args[0], *out = args[5], *records = args[8] == Py_None ? NULL : args[8];
    Loop loop = {.self = self, .view = view, .at = PyLong_AsSsize_t(args[1]), .end = PyLong_AsSsize_t(args[2]),
                 .limit = PyLong_AsSsize_t(args[3]), .slow = args[4], .out = out,
                 .records = self->join.record == NULL ? NULL : records};
    Py_ssize_t most = PyLong_AsSsize_t(args[6]), heavy = PyLong_AsSsize_t(args[7]), taken = -1;
    if (PyErr_Occurred() || (loop.changed = PyObject_IsTrue(args[9])) < 0)
        return NULL;
    Py_buffer held;
    if (!PyMemoryView_Check(view) || !PyList_CheckExact(out) || (records != NULL && !PyDict_CheckExact(records)) ||
        hold(view, &held) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a view of bytes, a list, and a dict or None are needed");
        return NULL;
    }
    if (loop.at < 0 || loop.at > loop.end || loop.end > held.len)
        PyErr_SetString(PyExc_ValueError, "start and end are not inside of the view");
    else if (most < 0)
        PyErr_SetString(PyExc_ValueError, "most is negative");
    else {
        loop.bytes = held.buf;
        taken = run_loop(&loop, most, heavy);
        end_runs(&loop);
    }
    PyBuffer_Release(&held);
    return taken < 0 ? NULL : Py_BuildValue("nn", loop.at, taken);
}

/* --- the type ---------------------------------------------------------------------------------------------------- */

/* Whether a field of `width` bytes lies behind the header and in the first `size` bytes of a frame. */
static int
is_inside(Py_ssize_t at, Py_ssize_t width, Py_ssize_t size)
{
    return width <= size && at >= HEADER_BYTES && at <= size - width;
}

static int
column_init(Column *column, PyObject *from, Py_ssize_t end_bytes)
{
    const char *what;
    if (!PyTuple_Check(from))
        return PyErr_Format(PyExc_TypeError, "a column is a tuple"), -1;
    if (!PyArg_ParseTuple(from, "sn", &what, &column->at))
        return -1;
    column->op = strcmp(what, "data") == 0 ? OP_DATA : strcmp(what, "int32") == 0 ? OP_INT32 : OP_INT64;
    if (column->op == OP_DATA || (column->op == OP_INT32 && is_inside(column->at, 4, end_bytes)) ||
        (strcmp(what, "int64") == 0 && is_inside(column->at, 8, end_bytes)))
        return 0;
    PyErr_SetString(PyExc_ValueError, "a row cannot have such a column");
    return -1;
}

static int
join_init(Join *join, PyObject *from)
{
    const char *last;
    PyTypeObject *record;
    PyObject *columns;
    Py_buffer changes;
    if (!PyArg_ParseTuple(from, "O!siinnnnnnnnO!y*", &PyType_Type, &record, &last, &join->block, &join->end, &join->head,
                          &join->end_bytes, &join->alike_in_block, &join->alike_in_end, &join->sized, &join->own,
                          &join->number, &join->count, &PyTuple_Type, &columns, &changes))
        return -1;
    for (Py_ssize_t i = 0; i < changes.len; i++)
        join->changes[((unsigned char *)changes.buf)[i]] = 1;
    PyBuffer_Release(&changes);
    Py_ssize_t size = join->end_bytes;
    join->columns = PyTuple_GET_SIZE(columns);
    if (size > MAX_FRAME_BYTES || join->head > MAX_FRAME_BYTES || join->columns > MAX_COLUMNS ||
        !is_inside(join->alike_in_block, UUID_BYTES, join->head) || !is_inside(join->alike_in_end, UUID_BYTES, size) ||
        !is_inside(join->sized, 4, size) || !is_inside(join->own, 4, size) || !is_inside(join->number, 8, size) ||
        !is_inside(join->count, 4, size)) {
        PyErr_SetString(PyExc_ValueError, "a block and its end cannot be joined in this way");
        return -1;
    }
    for (Py_ssize_t i = 0; i < join->columns; i++)
        if (column_init(&join->column[i], PyTuple_GET_ITEM(columns, i), size) < 0)
            return -1;
    join->last = slot_of(record, last);
    if (join->last < 0)
        return -1;
    join->record = (PyTypeObject *)Py_NewRef(record);
    return 0;
}

static int
run_init(Run *run, PyObject *from)
{
    PyObject *make;
    Py_buffer head;
    if (!PyArg_ParseTuple(from, "Oy*nn", &make, &head, &run->size, &run->most))
        return -1;
    int fits = head.len == HEADER_BYTES && run->size >= HEADER_BYTES && run->size <= MAX_FRAME_BYTES;
    if (fits)
        memcpy(run->head, head.buf, HEADER_BYTES);
    PyBuffer_Release(&head);
    if (!fits || load32(run->head + 4) != run->size - HEADER_BYTES) {
        PyErr_SetString(PyExc_ValueError, "frames of one length are needed");
        return -1;
    }
    run->make = Py_NewRef(make);
    return 0;
}

static PyObject *
frames_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *codec, *join, *run;
    Py_buffer light;
    Py_ssize_t most;
    static char *keywords[] = {"codec", "light", "most_elements", "join", "run", NULL};
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!y*nO!O!:Frames", keywords, state->codec, &codec,
                                                      &light, &most, &PyTuple_Type, &join, &PyTuple_Type, &run))
        return NULL;
    Frames *self = (Frames *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = frames_call;
        self->codec = (Codec *)Py_NewRef(codec);
        self->most_elements = most;
        for (Py_ssize_t i = 0; i < light.len; i++)
            self->light[((unsigned char *)light.buf)[i]] = 1;
        if ((PyTuple_GET_SIZE(join) && join_init(&self->join, join) < 0) ||
            (PyTuple_GET_SIZE(run) && run_init(&self->run, run) < 0))
            Py_CLEAR(self);
    }
    PyBuffer_Release(&light);
    return (PyObject *)self;
}

static void
frames_dealloc(Frames *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->codec);
    Py_XDECREF(self->join.record);
    Py_XDECREF(self->run.make);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef frames_members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Frames, vectorcall), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot frames_slots[] = {
    {Py_tp_doc, "Frames(codec, light, most_elements, join, run)\n--\n\nDecodes the frames of a buffer."},
    {Py_tp_new, frames_new},
    {Py_tp_dealloc, frames_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, frames_members},
    {0, NULL},
};

PyType_Spec frames_spec = {
    .name = "segstore._speed.Frames",
    .basicsize = sizeof(Frames),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = frames_slots,
};
