/* Records of a trace as columns, in buffers as Arrow lays them out: the equal of rows made in Python. find_spans() says where a frame has its values; a record that is declined is a
   row of `slow`, a function of Python, which also raises the error if there is one. */

#include "speed.h"

#define MOST_TEXT 0x3FFFFFFF /* bytes in a column, whose offsets are int32; twice as many are an int, too */

/* Numbers that every record has, and what else a column can be filled from. */
typedef enum {
    TS_NS, TIME, CONNECTION, DIRECTION, KIND, SIZE, RECORD, CODE,
    NUMBERS,
    BODY = NUMBERS, DATA,
    SOURCES
} Source;
typedef enum { FLAG, INT8, INT32, INT64, TEXT, BINARY, TYPES } Type;
typedef enum { CONSTANT, VALUE, BYTES, UPPER, LOWER, HOWS } How;
enum { PLAIN, FRAME, LEFT_TO_PYTHON }; /* kinds of records */

static const char *const source_names[SOURCES] = {
    "ts_ns", "time", "connection", "direction", "kind", "size", "record", "code", "body", "data",
};
static const char *const type_names[TYPES] = {"flag", "int8", "int32", "int64", "text", "binary"};
static const char *const how_names[HOWS] = {"constant", "value", "bytes", "upper", "lower"};
static const Py_ssize_t widths[TYPES] = {0, 1, 4, 8, 4, 4}; /* of an offset, for texts */

typedef struct {
    Type type;
    Source source;
    PyObject *labels; /* owned tuple of texts: what a number stands for; () for the number itself */
} Column;

/* Fills a column from a frame: with a constant, or from a value of the frame. */
typedef struct {
    Py_ssize_t column;
    How how;
    int span;           /* the index of the value's span */
    PyObject *constant; /* owned. It, or the value's default if it may be missing */
} Step;

typedef struct {
    const Shape *shape; /* borrowed from the codec; NULL: frames of this code are left to Python */
    Py_ssize_t count;
    Step *steps; /* owned */
} Program;

/* Holds for a number that is in one of the ranges, or in none if `negated`. */
typedef struct {
    Source source;
    int missing, negated; /* missing: whether it holds where there is no number */
    Py_ssize_t count;
    int64_t *ranges; /* owned: first and last of each */
} Condition;

typedef struct {
    PyObject_HEAD
    Codec *codec; /* owned */
    int decodes;  /* whether frames are read at all */
    Py_ssize_t kinds;
    unsigned char kind[256];
    Program programs[256]; /* by the lowest byte of the code */
    Py_ssize_t columns, numbered, conditions;
    Column *column;       /* owned. The first `numbered` are filled from numbers */
    Condition *condition; /* owned */
} Rows;

/* The buffers of a column, bytes that nothing else refers to until they are complete. */
typedef struct {
    PyObject *valid, *fixed, *data; /* owned. data: of texts, else NULL */
    char *bits, *items;             /* the bytes of `valid` and `fixed`, whose size does not change */
    Py_ssize_t used, offsets;       /* bytes of data; rows that have their offset, if it is a column of texts */
} Output;

typedef struct {
    int64_t numbers[NUMBERS];
    int has_code;
    Py_ssize_t start, end; /* in the data; 0 <= start <= end <= its size */
} Record;

/* What one call works on. */
typedef struct {
    Rows *self;
    PyObject *slow;                        /* borrowed */
    const unsigned char *column[5], *data; /* ts_ns, connection, end, direction, kind; held by the caller */
    Output *out;
    Py_ssize_t row; /* the number of rows so far */
} Fill;

/* --- values ------------------------------------------------------------------------------------------------------ */

static void
mark_valid(Output *out, Py_ssize_t row)
{
    out->bits[row >> 3] |= (char)(1 << (row & 7));
}

/* Sets the offsets up to the one at which the data of a row starts. */
static void
put_offsets(Output *out, Py_ssize_t row)
{
    int32_t used = (int32_t)out->used;
    for (; out->offsets < row; out->offsets++)
        memcpy(out->items + 4 * (out->offsets + 1), &used, 4);
}

static int
put_text(Output *out, Py_ssize_t row, const char *from, Py_ssize_t size)
{
    if (size > MOST_TEXT - out->used) {
        PyErr_SetString(PyExc_OverflowError, "the texts of a column are too long");
        return -1;
    }
    put_offsets(out, row);
    if (out->used + size > PyBytes_GET_SIZE(out->data) && _PyBytes_Resize(&out->data, 2 * (out->used + size)) < 0)
        return -1;
    memcpy(PyBytes_AS_STRING(out->data) + out->used, from, size);
    out->used += size;
    mark_valid(out, row);
    return 0;
}

static int
put_number(Type type, Output *out, Py_ssize_t row, int64_t number)
{
    int8_t in8 = (int8_t)number;
    int32_t in32 = (int32_t)number;
    if (type == FLAG)
        out->items[row >> 3] |= (char)((number != 0) << (row & 7));
    else if (type == INT8 && in8 == number)
        out->items[row] = in8;
    else if (type == INT32 && in32 == number)
        memcpy(out->items + 4 * row, &in32, 4);
    else if (type == INT64)
        memcpy(out->items + 8 * row, &number, 8);
    else {
        PyErr_Format(PyExc_OverflowError, "a column of type %s has no %lld", type_names[type], (long long)number);
        return -1;
    }
    mark_valid(out, row);
    return 0;
}

static int
put_uuid(Output *out, Py_ssize_t row, const unsigned char *bytes)
{
    char text[36], *to = text;
    for (int i = 0; i < UUID_BYTES; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = "0123456789abcdef"[bytes[i] >> 4];
        *to++ = "0123456789abcdef"[bytes[i] & 15];
    }
    return put_text(out, row, text, sizeof text);
}

/* A number, text or bytes as Python has it; None is a missing value. */
static int
put_object(Type type, Output *out, Py_ssize_t row, PyObject *value)
{
    Py_ssize_t size;
    if (value == Py_None)
        return 0;
    if (type == TEXT && PyUnicode_Check(value)) {
        const char *text = PyUnicode_AsUTF8AndSize(value, &size);
        return text == NULL ? -1 : put_text(out, row, text, size);
    }
    if (type == BINARY && PyBytes_Check(value))
        return put_text(out, row, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    if (type < TEXT && PyLong_Check(value)) {
        long long number = PyLong_AsLongLong(value);
        return number == -1 && PyErr_Occurred() ? -1 : put_number(type, out, row, number);
    }
    PyErr_Format(PyExc_TypeError, "a column of type %s has no %s", type_names[type], Py_TYPE(value)->tp_name);
    return -1;
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

static int
takes(const Rows *self, const Record *record)
{
    for (Py_ssize_t i = 0; i < self->conditions; i++) {
        const Condition *each = &self->condition[i];
        int64_t number = record->numbers[each->source];
        int inside = 0;
        if (each->source == CODE && !record->has_code) {
            if (!each->missing)
                return 0;
            continue;
        }
        for (Py_ssize_t at = 0; at < each->count && !inside; at++)
            inside = each->ranges[2 * at] <= number && number <= each->ranges[2 * at + 1];
        if (inside == each->negated)
            return 0;
    }
    return 1;
}

/* The program of a record; NULL if it is left to Python. */
static const Program *
program_of(const Rows *self, const Record *record)
{
    static const Program nothing = {NULL, 0, NULL};
    switch (self->kind[record->numbers[KIND]]) {
    case PLAIN:
        return &nothing;
    case FRAME: {
        const Program *program = &self->programs[record->numbers[CODE] & 0xFF];
        int mine = record->has_code && program->shape != NULL && program->shape->code == record->numbers[CODE];
        return mine ? program : NULL;
    }
    default:
        return NULL;
    }
}

/* The number that a value is, or its size; step_init() has checked that it is one. */
static int64_t
number_of(const unsigned char *data, const Span *span, How how)
{
    const unsigned char *at = data + span->at;
    switch (span->node->op) {
    case OP_INT8:
        return (signed char)*at;
    case OP_FLAG:
        return *at != 0;
    case OP_INT32:
        return load32(at);
    case OP_INT64:
        return how == UPPER   ? load32(at)
               : how == LOWER ? load32(at + 4)
                              : load64(at);
    case OP_DATA:
        return span->size > 4 ? span->size - 4 : 0;
    default:
        return span->size;
    }
}

static int
take_step(Fill *f, const Step *step, const Span *spans)
{
    Type type = f->self->column[step->column].type;
    Output *out = &f->out[step->column];
    if (step->how == CONSTANT)
        return put_object(type, out, f->row, step->constant);
    const Span *span = &spans[step->span];
    switch (span->node->op) {
    case OP_TEXT:
        return put_text(out, f->row, (const char *)f->data + span->at + 2, span->size - 2);
    case OP_UUID:
        return put_uuid(out, f->row, f->data + span->at);
    case OP_TAIL: /* it is missing */
        return put_object(type, out, f->row, step->constant);
    default:
        return put_number(type, out, f->row, number_of(f->data, span, step->how));
    }
}

/* What the frame or the record's data says. 0, or -1: an exception, or left to Python if none is set. */
static int
take_body(Fill *f, const Record *record)
{
    const Rows *self = f->self;
    const Program *program = program_of(self, record);
    Span spans[MAX_SPANS];
    int status = 0;
    if (program == NULL)
        return -1;
    if (program->shape != NULL && self->decodes) {
        Py_ssize_t body = record->start + HEADER_BYTES;
        if (load32(f->data + record->start + 4) != record->end - body ||
            find_spans(f->data, body, record->end, program->shape, spans) < 0)
            return -1;
    }
    for (Py_ssize_t i = 0; i < program->count && status == 0; i++)
        status = take_step(f, &program->steps[i], spans);
    for (Py_ssize_t i = self->numbered; i < self->columns && status == 0; i++)
        if (self->column[i].source == DATA)
            status = put_text(&f->out[i], f->row, (const char *)f->data + record->start, record->end - record->start);
    return status;
}

static int
take_slow(Fill *f, Py_ssize_t number)
{
    PyObject *values = PyObject_CallFunction(f->slow, "n", number);
    int status = 0;
    if (values == NULL)
        return -1;
    if (!PyTuple_CheckExact(values) || PyTuple_GET_SIZE(values) != f->self->columns) {
        PyErr_SetString(PyExc_TypeError, "slow returns a tuple with a value for each column");
        status = -1;
    }
    for (Py_ssize_t i = f->self->numbered; i < f->self->columns && status == 0; i++)
        status = put_object(f->self->column[i].type, &f->out[i], f->row, PyTuple_GET_ITEM(values, i));
    Py_DECREF(values);
    return status;
}

static int
take_row(Fill *f, const Record *record)
{
    const Rows *self = f->self;
    for (Py_ssize_t i = 0; i < self->numbered; i++) {
        const Column *column = &self->column[i];
        if (column->source == CODE && !record->has_code)
            continue;
        int64_t number = record->numbers[column->source];
        Py_ssize_t labels = PyTuple_GET_SIZE(column->labels);
        if (labels > 0 && (number < 0 || number >= labels)) {
            PyErr_SetString(PyExc_ValueError, "a number without a label");
            return -1;
        }
        int status = labels > 0 ? put_object(column->type, &f->out[i], f->row,
                                             PyTuple_GET_ITEM(column->labels, (Py_ssize_t)number))
                                : put_number(column->type, &f->out[i], f->row, number);
        if (status < 0)
            return -1;
    }
    if (take_body(f, record) < 0 && (PyErr_Occurred() || take_slow(f, (Py_ssize_t)record->numbers[RECORD]) < 0))
        return -1;
    f->row++;
    return 0;
}

static int64_t
number_at(const unsigned char *column, Py_ssize_t at)
{
    int64_t number;
    memcpy(&number, column + 8 * at, 8);
    return number;
}

/* Reads the record that starts where the one before ends. -1 with an exception. */
static int
load_record(const Fill *f, Py_ssize_t at, Py_ssize_t size, Record *record)
{
    int64_t start = at == 0 ? 0 : number_at(f->column[2], at - 1), end = number_at(f->column[2], at);
    int64_t *numbers = record->numbers;
    int kind = f->column[4][at];
    if (start < 0 || start > end || end > size || kind >= f->self->kinds) {
        PyErr_SetString(PyExc_ValueError, "a record is not inside of the data, or of no kind");
        return -1;
    }
    record->start = (Py_ssize_t)start;
    record->end = (Py_ssize_t)end;
    numbers[TS_NS] = number_at(f->column[0], at);
    numbers[TIME] = numbers[TS_NS] / 1000 - (numbers[TS_NS] % 1000 < 0);
    numbers[CONNECTION] = number_at(f->column[1], at);
    numbers[DIRECTION] = f->column[3][at];
    numbers[KIND] = kind;
    numbers[SIZE] = end - start;
    numbers[RECORD] = at;
    record->has_code = f->self->kind[kind] == FRAME && end - start >= HEADER_BYTES;
    numbers[CODE] = record->has_code ? load32(f->data + start) : 0;
    return 0;
}

/* --- calls ------------------------------------------------------------------------------------------------------- */

static PyObject *
zeros(Py_ssize_t size)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, size);
    if (made != NULL)
        memset(PyBytes_AS_STRING(made), 0, size);
    return made;
}

static int
output_init(Output *out, Type type, Py_ssize_t rows)
{
    Py_ssize_t bits = (rows + 7) / 8;
    out->valid = zeros(bits);
    out->fixed = zeros(type == FLAG ? bits : (rows + 1) * widths[type]);
    if (type >= TEXT)
        out->data = zeros(0);
    if (out->valid == NULL || out->fixed == NULL || (type >= TEXT && out->data == NULL))
        return -1;
    out->bits = PyBytes_AS_STRING(out->valid);
    out->items = PyBytes_AS_STRING(out->fixed);
    return 0;
}

/* The rows from `first` to before `stop`: their number, and the buffers of each column. */
static PyObject *
fill(Fill *f, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t size)
{
    const Rows *self = f->self;
    Record record;
    f->out = PyMem_Calloc(self->columns + 1, sizeof(Output));
    int status = f->out == NULL ? -1 : 0;
    if (status < 0)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < self->columns && status == 0; i++)
        status = output_init(&f->out[i], self->column[i].type, stop - first);
    for (Py_ssize_t at = first; at < stop && status == 0; at++) {
        status = load_record(f, at, size, &record);
        if (status == 0 && takes(self, &record))
            status = take_row(f, &record);
    }
    PyObject *made = status < 0 ? NULL : new_tuple(self->columns);
    for (Py_ssize_t i = 0; i < self->columns && made != NULL; i++) {
        Output *out = &f->out[i];
        PyObject *one = NULL;
        if (out->data == NULL)
            one = PyTuple_Pack(2, out->valid, out->fixed);
        else {
            put_offsets(out, f->row);
            if (_PyBytes_Resize(&out->data, out->used) == 0)
                one = PyTuple_Pack(3, out->valid, out->fixed, out->data);
        }
        if (one == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, one);
    }
    if (made != NULL)
        show_tuple(made);
    for (Py_ssize_t i = 0; i < self->columns && f->out != NULL; i++) {
        Py_XDECREF(f->out[i].valid);
        Py_XDECREF(f->out[i].fixed);
        Py_XDECREF(f->out[i].data);
    }
    PyMem_Free(f->out);
    return made == NULL ? NULL : Py_BuildValue("nN", f->row, made);
}

static PyObject *
rows_fill(Rows *self, PyObject *args)
{
    Py_buffer column[5], data;
    Py_ssize_t first, stop;
    PyObject *owner;
    Fill f = {.self = self};
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*OnnO:fill", &column[0], &column[1], &column[2], &column[3], &column[4],
                          &owner, &first, &stop, &f.slow))
        return NULL;
    PyObject *made = NULL;
    int inside = 0 <= first && first <= stop;
    for (int i = 0; i < 5; i++) {
        f.column[i] = column[i].buf;
        inside &= stop <= column[i].len / (i < 3 ? 8 : 1);
    }
    if (!inside)
        PyErr_SetString(PyExc_ValueError, "first and stop are not inside of the columns");
    else if (hold(owner, &data) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "the data is bytes, a bytearray or a view of bytes");
    }
    else {
        f.data = data.buf;
        made = fill(&f, first, stop, data.len);
        PyBuffer_Release(&data);
    }
    for (int i = 0; i < 5; i++)
        PyBuffer_Release(&column[i]);
    return made;
}

/* --- the type ---------------------------------------------------------------------------------------------------- */

/* The index of a name; -1 with ValueError. */
static int
index_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    PyErr_Format(PyExc_ValueError, "%s is unknown", name);
    return -1;
}

static int
column_init(Column *column, PyObject *from)
{
    const char *type, *source;
    PyObject *labels;
    if (!PyTuple_CheckExact(from)) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(from, "ssO!", &type, &source, &PyTuple_Type, &labels))
        return -1;
    int of_type = index_of(type, type_names, TYPES), of_source = index_of(source, source_names, SOURCES);
    if (of_type < 0 || of_source < 0)
        return -1;
    int is_text = of_type == TEXT, labelled = PyTuple_GET_SIZE(labels) > 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(labels); i++)
        is_text &= PyUnicode_CheckExact(PyTuple_GET_ITEM(labels, i));
    int fits = of_source == BODY ? !labelled
               : of_source == DATA ? of_type == BINARY && !labelled
                                   : labelled ? is_text : of_type >= INT8 && of_type <= INT64;
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "a column of type %s cannot be filled from %s", type, source);
        return -1;
    }
    column->type = (Type)of_type;
    column->source = (Source)of_source;
    column->labels = Py_NewRef(labels);
    return 0;
}

/* The node that fills an attribute, or one of the record that it holds; `*span` is where find_spans() says where it is.
   NULL if there is none. */
static const Node *
node_of(const Shape *shape, int attribute, int inner, int *span)
{
    *span = 0;
    for (Py_ssize_t i = 0; i < shape->node.count; i++) {
        const Node *node = &shape->node.inner[i];
        int found = node->attribute == attribute && attribute >= 0;
        if (found && inner < 0)
            return node;
        if (node->op == OP_STRUCTURE) {
            int in_record;
            const Shape *record = (const Shape *)node->object;
            const Node *nested = found ? node_of(record, inner, -1, &in_record) : NULL;
            if (found) {
                *span += 1 + in_record;
                return nested;
            }
            *span += span_count(record);
        }
        *span += 1;
    }
    return NULL;
}

/* Whether a value of the node can be put into a column. */
static int
is_fit(const Node *node, How how, Type type)
{
    Op op = node->op == OP_TAIL ? node->inner[0].op : node->op;
    switch (how) {
    case VALUE:
        return type == TEXT ? op == OP_TEXT || op == OP_UUID
               : type == FLAG ? op == OP_FLAG
                              : type < TEXT && (op <= OP_INT64 || op == OP_ZERO_RUN);
    case BYTES:
        return type == INT32 && (op == OP_DATA || op == OP_REMAINDER || op == OP_ZERO_RUN) && node->op != OP_TAIL;
    default:
        return type == INT32 && op == OP_INT64;
    }
}

static int
step_init(Step *step, PyObject *from, const Rows *self, const Shape *shape)
{
    const char *how;
    int attribute, inner;
    PyObject *constant;
    if (!PyTuple_CheckExact(from)) {
        PyErr_SetString(PyExc_TypeError, "a step is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(from, "nsiiO", &step->column, &how, &attribute, &inner, &constant))
        return -1;
    int index = index_of(how, how_names, HOWS);
    if (index < 0)
        return -1;
    step->how = (How)index;
    int fits = step->column >= self->numbered && step->column < self->columns &&
               self->column[step->column].source == BODY;
    if (step->how == CONSTANT)
        fits = fits && (PyUnicode_CheckExact(constant) || PyBool_Check(constant));
    else if (fits) {
        const Node *node = self->decodes ? node_of(shape, attribute, inner, &step->span) : NULL;
        fits = node != NULL && is_fit(node, step->how, self->column[step->column].type);
        if (fits && node->op == OP_TAIL)
            constant = node->object;
        if (fits && node->op == OP_TAIL && step->how > BYTES) {
            long long number = PyLong_AsLongLong(constant);
            if (number == -1 && PyErr_Occurred())
                return -1;
            step->constant = PyLong_FromLong((int32_t)((uint64_t)number >> (step->how == UPPER ? 32 : 0)));
            return step->constant == NULL ? -1 : 0;
        }
    }
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "%s has no step %R", shape->cls->tp_name, from);
        return -1;
    }
    step->constant = Py_NewRef(constant);
    return 0;
}

static int
program_init(Rows *self, PyObject *from)
{
    int code;
    PyObject *steps;
    if (!PyTuple_CheckExact(from)) {
        PyErr_SetString(PyExc_TypeError, "a program is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(from, "iO!", &code, &PyTuple_Type, &steps))
        return -1;
    Program *program = &self->programs[code & 0xFF];
    const Shape *shape = shape_of_code(self->codec, code);
    if (shape == NULL || program->shape != NULL || span_count(shape) > MAX_SPANS) {
        PyErr_Format(PyExc_ValueError, "there can be no program for the code %d", code);
        return -1;
    }
    program->shape = shape;
    program->steps = PyMem_Calloc(PyTuple_GET_SIZE(steps) + 1, sizeof(Step));
    if (program->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; program->count < PyTuple_GET_SIZE(steps); program->count++)
        if (step_init(&program->steps[program->count], PyTuple_GET_ITEM(steps, program->count), self, shape) < 0)
            return -1;
    return 0;
}

static int
condition_init(Condition *condition, PyObject *from)
{
    const char *name;
    PyObject *ranges;
    if (!PyTuple_CheckExact(from)) {
        PyErr_SetString(PyExc_TypeError, "a condition is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(from, "sppO!", &name, &condition->missing, &condition->negated, &PyTuple_Type, &ranges))
        return -1;
    int source = index_of(name, source_names, NUMBERS);
    if (source < 0)
        return -1;
    condition->source = (Source)source;
    condition->ranges = PyMem_Calloc(PyTuple_GET_SIZE(ranges) + 1, 2 * sizeof(int64_t));
    if (condition->ranges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; condition->count < PyTuple_GET_SIZE(ranges); condition->count++) {
        PyObject *range = PyTuple_GET_ITEM(ranges, condition->count);
        long long least, most;
        if (!PyTuple_CheckExact(range)) {
            PyErr_SetString(PyExc_TypeError, "a range is a tuple");
            return -1;
        }
        if (!PyArg_ParseTuple(range, "LL", &least, &most))
            return -1;
        condition->ranges[2 * condition->count] = least;
        condition->ranges[2 * condition->count + 1] = most;
    }
    return 0;
}

static int
rows_init(Rows *self, PyObject *columns, PyObject *programs, PyObject *conditions)
{
    self->column = PyMem_Calloc(PyTuple_GET_SIZE(columns) + 1, sizeof(Column));
    self->condition = PyMem_Calloc(PyTuple_GET_SIZE(conditions) + 1, sizeof(Condition));
    if (self->column == NULL || self->condition == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; self->columns < PyTuple_GET_SIZE(columns); self->columns++) {
        if (column_init(&self->column[self->columns], PyTuple_GET_ITEM(columns, self->columns)) < 0)
            return -1;
        if (self->column[self->columns].source < BODY && self->numbered++ < self->columns) {
            Py_CLEAR(self->column[self->columns].labels);
            PyErr_SetString(PyExc_ValueError, "columns of numbers come first");
            return -1;
        }
    }
    while (self->conditions < PyTuple_GET_SIZE(conditions)) {
        Condition *each = &self->condition[self->conditions++]; /* cleared with the others, also if it fails */
        if (condition_init(each, PyTuple_GET_ITEM(conditions, self->conditions - 1)) < 0)
            return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(programs); i++)
        if (program_init(self, PyTuple_GET_ITEM(programs, i)) < 0)
            return -1;
    return 0;
}

static PyObject *
rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *codec, *columns, *programs, *conditions;
    Py_buffer kinds;
    int decodes;
    static char *keywords[] = {"codec", "columns", "programs", "conditions", "kinds", "decodes", NULL};
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!y*p:Rows", keywords, state->codec, &codec,
                                                      &PyTuple_Type, &columns, &PyTuple_Type, &programs, &PyTuple_Type,
                                                      &conditions, &kinds, &decodes))
        return NULL;
    Rows *self = kinds.len > 256 ? NULL : (Rows *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->codec = (Codec *)Py_NewRef(codec);
        self->decodes = decodes;
        self->kinds = kinds.len;
        memcpy(self->kind, kinds.buf, kinds.len);
        if (rows_init(self, columns, programs, conditions) < 0)
            Py_CLEAR(self);
    }
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a kind is a byte");
    PyBuffer_Release(&kinds);
    return (PyObject *)self;
}

static void
rows_dealloc(Rows *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->columns; i++)
        Py_XDECREF(self->column[i].labels);
    for (Py_ssize_t i = 0; i < self->conditions; i++)
        PyMem_Free(self->condition[i].ranges);
    for (int i = 0; i < 256; i++) {
        for (Py_ssize_t at = 0; at < self->programs[i].count; at++)
            Py_XDECREF(self->programs[i].steps[at].constant);
        PyMem_Free(self->programs[i].steps);
    }
    PyMem_Free(self->column);
    PyMem_Free(self->condition);
    Py_XDECREF(self->codec);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef rows_methods[] = {
    {"fill", (PyCFunction)rows_fill, METH_VARARGS,
     "fill($self, ts_ns, connection, end, direction, kind, data, first, stop, slow, /)\n--\n\n"
     "The number of rows, and the buffers of each column."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "Rows(codec, columns, programs, conditions, kinds, decodes)\n--\n\nRecords as columns."},
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods},
    {0, NULL},
};

PyType_Spec rows_spec = {
    .name = "segstore._speed.Rows",
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rows_slots,
};
