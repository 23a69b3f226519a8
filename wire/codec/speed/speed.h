/* segstore._speed: what its files share.

   The extension knows no command. Python compiles the fields of the schema (segstore.wire.schema.types) into a Shape
   for each command and structure; read.c and write.c walk it. What they do not take, for whatever reason, they decline:
   they return "nothing" with no exception set, and the caller lets the Python codec start from scratch with the same
   arguments. So results that differ from the plain case, and all errors about bytes and values, come from Python alone.
   What is raised here is MemoryError, or TypeError and ValueError for misuse of this module; errors
   of functions of Python that are called here are passed on.

   Rules that hold throughout are listed in README.md beside this file. */

#ifndef SEGSTORE_SPEED_H
#define SEGSTORE_SPEED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

_Static_assert(sizeof(Py_ssize_t) >= 8, "lengths of 32 bits are added to each other; other systems use Python alone");

#define HEADER_BYTES 8
#define UUID_BYTES 16
#define MAX_FRAME_BYTES 0x00FFFFFF /* header included */
#define MAX_ATTRIBUTES 16          /* of a record; the longest has 8 */
#define MAX_DEPTH 8                /* of records in records; the deepest is 4 */
#define MAX_SPANS 32
#define MEMO_ENTRIES 1024

/* --- shapes ------------------------------------------------------------------------------------------------------ */

/* The types of fields; op_names in shape.c has their names in this order. */
typedef enum {
    OP_INT8, OP_INT32, OP_INT64, OP_FLAG, OP_UUID, /* Fixed, by format */
    OP_NUMBER, OP_MEMBER,                          /* EnumCode, and each member of its enum */
    OP_CONSTANT, OP_TEXT, OP_DATA, OP_REMAINDER, OP_ZERO_RUN, OP_SIZED,
    OP_TAIL, OP_STRUCTURE, OP_MANY, OP_TABLE,
    OPS
} Op;

enum { NEGATIVE_IS_EMPTY = 1, OPTIONAL = 2, NOT_WRITTEN = 4, ALL_FLAGS = 7 };

typedef struct Node {
    Op op;
    int flags;
    int attribute;       /* its index among the attributes of its record; -1 if it has none */
    Py_ssize_t number;   /* CONSTANT, MEMBER: the code. TAIL: bytes needed. MANY, TABLE: bytes of the smallest element */
    PyObject *object;    /* owned. NUMBER: the unknown member. MEMBER: it. TAIL, SIZED: the default. STRUCTURE: a Shape */
    Py_ssize_t count;    /* of `inner` */
    struct Node *inner;  /* owned. NUMBER: members. TAIL, MANY: one. SIZED: none, or the trailer. TABLE: columns */
} Node;

/* How a record is laid out, on the wire and in memory. Immutable; refers to other shapes, never to itself. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *cls;  /* owned */
    int32_t code;       /* of a command */
    int attributes;
    int depth;
    Py_ssize_t slots[MAX_ATTRIBUTES]; /* where an instance keeps the attributes, which are all that it has */
    PyObject *only;     /* owned. The one value of a record without nodes, else NULL */
    PyObject *frame;    /* owned. The frame of that value, else NULL */
    Node node;          /* `inner` are the nodes of the record */
} Shape;

/* --- the codec --------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char key[UUID_BYTES];
    PyObject *uuid; /* owned, or NULL */
} Memo;

/* All shapes of commands, and what is needed to make UUIDs. Immutable but for the memo of recent UUIDs. */
typedef struct {
    PyObject_HEAD
    Shape *shapes[256];    /* owned, by the lowest byte of the type code; NULL where there is no command */
    PyObject *by_class;    /* owned dict: class → Shape */
    PyTypeObject *uuid;    /* owned: uuid.UUID */
    PyTypeObject *made;    /* owned: the subclass of it that keeps its bytes, which is what is read */
    PyObject *safety;      /* owned: the `is_safe` of UUIDs that are read */
    PyObject *no_data;     /* owned: b"" */
    Py_ssize_t int_offset, safety_offset, bytes_offset;
    Memo memo[MEMO_ENTRIES];
} Codec;

typedef struct {
    PyTypeObject *shape, *codec, *frames, *acks, *rows, *shortcut; /* owned */
} State;

extern PyType_Spec shape_spec, codec_spec, frames_spec, acks_spec, rows_spec, shortcut_spec;

/* Offset of the slot `name` in instances of `cls`; -1 and TypeError if it is not a plain slot. */
Py_ssize_t slot_of(PyTypeObject *cls, const char *name);

static inline PyObject *
slot(PyObject *owner, Py_ssize_t offset)
{
    return *(PyObject **)((char *)owner + offset);
}

/* A tuple whose items are still to be set. The garbage collector, and so no other code, knows it before show_tuple(). */
static inline PyObject *
new_tuple(Py_ssize_t count)
{
    PyObject *made = PyTuple_New(count);
    if (made != NULL && count > 0)
        PyObject_GC_UnTrack(made);
    return made;
}

static inline void
show_tuple(PyObject *tuple)
{
    if (PyTuple_GET_SIZE(tuple) > 0)
        PyObject_GC_Track(tuple);
}

static inline Shape *
shape_of_code(const Codec *codec, int32_t code)
{
    Shape *shape = codec->shapes[code & 0xFF];
    return shape != NULL && shape->code == code ? shape : NULL;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

typedef struct {
    Codec *codec;
    PyObject *owner;            /* borrowed: bytes, a bytearray or a plain memoryview, whose bytes these are */
    const unsigned char *bytes; /* first byte of the owner, whose buffer the caller holds */
    Py_ssize_t at, end;         /* position, and end of the frame; at <= end <= size of the owner */
    Py_ssize_t most_elements;   /* in a list */
    Py_ssize_t copied;          /* a payload of fewer bytes is copied, which costs less than a view of it */
    PyObject *view;             /* owned: a view of the owner, made when the first payload is; whoever makes a reader
                                   clears it */
} Reader;

/* The value of a record whose body is from r->at to r->end. NULL: an exception, or declined if none is set. */
PyObject *read_record(Reader *r, const Shape *shape);

/* The attributes alone, as new references; 0, or -1 as above with all of them NULL. */
int read_attributes(Reader *r, const Shape *shape, PyObject **values);

void drop(PyObject **values, Py_ssize_t count);

/* Where a value is in the bytes. `node` says how to read it; if it is a TAIL, the value is missing. */
typedef struct {
    const Node *node;
    Py_ssize_t at, size;
} Span;

/* The number of spans of a record: one for each node, and those of the records in it, each behind that of the record. */
Py_ssize_t span_count(const Shape *shape);

/* Finds the values of a record of at most MAX_SPANS spans, whose body is from `at` to `end`. -1, with no exception, if
   it is declined, as it is if there is a list. */
int find_spans(const unsigned char *bytes, Py_ssize_t at, Py_ssize_t end, const Shape *shape, Span *spans);

/* A view or a copy of some bytes of r->owner; the caller has checked that they are inside. */
PyObject *payload_of(Reader *r, Py_ssize_t start, Py_ssize_t size);

/* Gets the buffer of bytes, a bytearray or a memoryview of bytes, whose views may be handed out as payloads. The caller
   releases it. -1: an exception, or declined if none is set. */
int hold(PyObject *owner, Py_buffer *buffer);

/* As hold(), of what can be written to. */
int hold_writable(PyObject *owner, Py_buffer *buffer);

/* The command of one whole frame, header included. NULL: an exception, or declined if none is set. */
PyObject *read_frame(Codec *codec, PyObject *frame);

static inline int32_t
load32(const unsigned char *from)
{
    return (int32_t)((uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3]);
}

static inline int64_t
load64(const unsigned char *from)
{
    return (int64_t)((uint64_t)(uint32_t)load32(from) << 32 | (uint32_t)load32(from + 4));
}

static inline void
store32(unsigned char *to, uint32_t number)
{
    to[0] = (unsigned char)(number >> 24);
    to[1] = (unsigned char)(number >> 16);
    to[2] = (unsigned char)(number >> 8);
    to[3] = (unsigned char)number;
}

static inline void
store64(unsigned char *to, uint64_t number)
{
    store32(to, (uint32_t)(number >> 32));
    store32(to + 4, (uint32_t)number);
}

/* --- writing ----------------------------------------------------------------------------------------------------- */

/* The frame of a command. NULL: an exception, or declined if none is set. */
PyObject *write_frame(Codec *codec, PyObject *command);

/* The same as a list of buffers, with payloads as the command has them. */
PyObject *write_parts(Codec *codec, PyObject *command);

/* --- functions of Python with an equal in C ----------------------------------------------------------------------- */

typedef struct Shortcut {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    const struct What *what;
    PyObject *behind;          /* owned */
    PyObject *dict;            /* owned, or NULL: what functools.update_wrapper sets */
    PyObject *weak_references; /* of Python */
    Codec *codec;              /* owned */
} Shortcut;

/* Functions of segstore.wire.trace.framing, with their arguments in order. Each returns NULL with an exception, or if it
   declines. */
PyObject *whole_frames(const Shortcut *self, PyObject *const *args);
PyObject *frames_into(const Shortcut *self, PyObject *const *args);

/* --- integers ---------------------------------------------------------------------------------------------------- */

/* Whether it is exactly an int from `least` to `most`. */
static inline int
number_in(PyObject *value, int64_t least, int64_t most, int64_t *number)
{
    int overflow;
    if (value == NULL || !PyLong_CheckExact(value))
        return 0;
    *number = PyLong_AsLongLongAndOverflow(value, &overflow); /* no other error for an exact int */
    return !overflow && *number >= least && *number <= most;
}

/* --- integers of 128 bits, whose functions have changed between versions of Python -------------------------------- */

#if PY_VERSION_HEX >= 0x030D0000
static inline PyObject *
int_of_16(const unsigned char *bytes)
{
    return PyLong_FromUnsignedNativeBytes(bytes, UUID_BYTES, Py_ASNATIVEBYTES_BIG_ENDIAN);
}
#else
static inline PyObject *
int_of_16(const unsigned char *bytes)
{
    return _PyLong_FromByteArray(bytes, UUID_BYTES, /* little_endian */ 0, /* is_signed */ 0);
}
#endif

/* Writes a non-negative int of up to 128 bits; -1 with an exception for any other. */
static inline int
int_to_16(PyObject *number, unsigned char *bytes)
{
#if PY_VERSION_HEX >= 0x030D0000
    Py_ssize_t size = PyLong_AsNativeBytes(number, bytes, UUID_BYTES,
                                           Py_ASNATIVEBYTES_BIG_ENDIAN | Py_ASNATIVEBYTES_UNSIGNED_BUFFER |
                                               Py_ASNATIVEBYTES_REJECT_NEGATIVE);
    if (size > UUID_BYTES)
        PyErr_SetString(PyExc_OverflowError, "more than 128 bits");
    return size < 0 || size > UUID_BYTES ? -1 : 0;
#else
    return _PyLong_AsByteArray((PyLongObject *)number, bytes, UUID_BYTES, 0, 0);
#endif
}

#endif
