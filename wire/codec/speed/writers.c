/* What a segment writer does with each event: queues it, sends it in an append, and completes what waits for it when it
   is acknowledged. Equals of functions in segstore.client.connection and segstore.client.segment.

   Objects that the garbage collector knows are made before the look at what is there: their creation may run finalizers,
   and so any code. From the look to the last change no code of Python runs. */

#include "speed.h"

#define LARGE_BYTES 4096 /* a piece of this size is not copied */

/* Classes of a writer's objects, and their slots, in the order in which Python names them. */
enum { SENDER, APPENDS, OUTBOX, IN_FLIGHT, APPEND, PENDING, DEQUE, FUTURE, INVALID_STATE, ROWS, MACHINE = FUTURE };
enum {
    ASKED, FLOW_BYTES, CLOSED, APPENDS_OF, IN_PYTHON,
    FLOW, FRAME_EVENTS, REQUEST_ID, WRITER_BYTES, AWAITED, OUTBOX_OF, PLAIN, QUEUE, TIMER,
    OUT, BATCH_BYTES, BATCH_EVENTS, OUTBOX_BYTES, LEFT_BYTES, MOST_BYTES, NOW_S, TURN_DUE, TURNS,
    BEHIND, LAST_TAKEN, LATER, ADDED_BYTES, FULL_AT, LAST_STORED, NEWEST, OLDEST, OVERHEAD,
    QUEUED, SEGMENT_LENGTH, SETTLED,
    FIRST, LAST, ITEMS, SIZE,
    DATA, EVENTS, DONE,
    QUEUE_OF, ERROR, LARGEST, MY_APPENDS,
    FRAMES = QUEUE_OF, UNPACK
};

/* The value of a slot if it is exactly of a type, else NULL. */
static PyObject *
typed(const Shortcut *self, PyObject *owner, int of, int type)
{
    PyObject *value = slot(owner, self->slots[of]);
    return value != NULL && Py_IS_TYPE(value, self->types[type]) ? value : NULL;
}

static PyObject *
list_at(const Shortcut *self, PyObject *owner, int of)
{
    PyObject *value = slot(owner, self->slots[of]);
    return value != NULL && PyList_CheckExact(value) ? value : NULL;
}

static int
number_at(const Shortcut *self, PyObject *owner, int of, int64_t *number)
{
    return number_in(slot(owner, self->slots[of]), -1, INT64_MAX / 4, number);
}

/* --- append(writer, data, done, events, tag, now) ------------------------------------------------------------------ */

/* Calls a method, which may do anything, its owner included; 1, or -1 with an exception. */
static int
call(PyObject *owner, const char *method)
{
    Py_INCREF(owner);
    PyObject *result = PyObject_CallMethod(owner, method, NULL);
    Py_DECREF(owner);
    Py_XDECREF(result);
    return result == NULL ? -1 : 1;
}

/* Passes a problem, which is consumed, to a method; 1, or -1 with an exception. */
static int
report(PyObject *owner, const char *method, PyObject *problem)
{
    PyObject *done = PyObject_CallMethod(owner, method, "O", problem);
    Py_DECREF(problem);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* The flow of plain appends, if it is open; NULL if there is none. */
static PyObject *
open_flow(const Shortcut *self, PyObject *appends)
{
    PyObject *flow = slot(appends, self->slots[FLOW]);
    if (slot(appends, self->slots[PLAIN]) != Py_True || flow == NULL ||
        !PyObject_TypeCheck(flow, self->types[SENDER]) || slot(flow, self->slots[CLOSED]) != Py_False)
        return NULL;
    return flow;
}

/* Where an item goes; all borrowed. */
typedef struct {
    PyObject *queue, *newest;
    PyObject *outbox, *flow; /* NULL unless the item is the first one that is queued */
    PyObject *turns;         /* NULL unless a turn is to be asked for */
    int64_t added;           /* the queue's total with the item */
} Place;

/* 0 if Python has to decide. now: whether the turn is wanted at once, which is not asked for. */
static int
find_place(const Shortcut *self, PyObject *writer, PyObject *data, int now, Place *place)
{
    const Py_ssize_t of[] = {self->slots[NEWEST], self->slots[ADDED_BYTES], self->slots[OVERHEAD]};
    int64_t largest, full_at;
    if (!PyObject_TypeCheck(writer, self->types[MACHINE]) || !PyBytes_CheckExact(data) ||
        slot(writer, self->slots[ERROR]) != Py_None || !number_at(self, writer, LARGEST, &largest) ||
        PyBytes_GET_SIZE(data) > largest || (place->queue = typed(self, writer, QUEUE_OF, IN_FLIGHT)) == NULL ||
        (place->newest = newest_of(place->queue, PyBytes_GET_SIZE(data), &place->added, of)) == NULL ||
        !number_at(self, place->queue, FULL_AT, &full_at))
        return 0;
    if (PyList_GET_SIZE(place->newest) > 0 || place->newest != slot(place->queue, self->slots[QUEUED]))
        return 1;
    PyObject *appends = typed(self, writer, MY_APPENDS, APPENDS), *asked;
    if (appends == NULL || (place->flow = open_flow(self, appends)) == NULL ||
        (asked = slot(place->flow, self->slots[ASKED])) == NULL || !PyBool_Check(asked) ||
        (place->outbox = typed(self, appends, OUTBOX_OF, OUTBOX)) == NULL ||
        (place->turns = list_at(self, place->outbox, TURNS)) == NULL)
        return 0;
    if (now || asked == Py_True)
        place->turns = NULL;
    return 1;
}

/* Queues an item, and asks for a turn if it needs one; 0, or -1 with an exception and nothing changed. */
static int
queue_item(const Shortcut *self, const Place *place, PyObject *item)
{
    PyObject *total = PyLong_FromLongLong(place->added);
    if (total == NULL)
        return -1;
    if (PyList_Append(place->newest, item) < 0) {
        Py_DECREF(total);
        return -1;
    }
    if (place->turns != NULL && PyList_Append(place->turns, place->flow) < 0) {
        Py_ssize_t last = PyList_GET_SIZE(place->newest) - 1;
        if (PyList_SetSlice(place->newest, last, last + 1, NULL) < 0)
            PyErr_Clear(); /* it shrinks a list */
        Py_DECREF(total);
        return -1;
    }
    set_slot(place->queue, self->slots[ADDED_BYTES], total);
    if (place->turns != NULL)
        set_slot(place->flow, self->slots[ASKED], Py_NewRef(Py_True)); /* it was False: no code runs */
    return 0;
}

/* The item's class, which the garbage collector does not track, runs no finalizer. */
PyObject *
append_item(const Shortcut *self, PyObject *const *args)
{
    PyObject *writer = args[0], *one = NULL, *queue;
    int64_t added, full_at;
    int now = args[5] == Py_True, status = 1;
    Place place = {NULL};
    if ((args[5] != NULL && !PyBool_Check(args[5])) || !find_place(self, writer, args[1], now, &place) ||
        (args[3] == NULL && (one = PyLong_FromLong(1)) == NULL))
        return NULL;
    PyObject *with[] = {args[1], one != NULL ? one : args[3], args[4] != NULL ? args[4] : Py_None, args[2]};
    PyObject *item = PyObject_Vectorcall((PyObject *)self->types[PENDING], with, 4, NULL);
    Py_XDECREF(one);
    if (item == NULL)
        return NULL;
    if (queue_item(self, &place, item) < 0)
        status = -1;
    else if (place.flow != NULL && now)
        status = call(place.flow, "turn_now");
    else if (place.turns != NULL && slot(place.outbox, self->slots[TURN_DUE]) != Py_True)
        status = call(place.outbox, "schedule");
    Py_DECREF(item);
    if (status < 0)
        return NULL;
    return PyBool_FromLong((queue = typed(self, writer, QUEUE_OF, IN_FLIGHT)) != NULL &&
                           number_at(self, queue, ADDED_BYTES, &added) && number_at(self, queue, FULL_AT, &full_at) &&
                           added < full_at);
}

/* --- run_turns(outbox, flows) -------------------------------------------------------------------------------------- */

/* What a turn works with; all borrowed. */
typedef struct {
    PyObject *outbox, *flow, *appends, *queue, *queued, *behind, *writer;
    int64_t overhead, last_taken, request, flow_bytes, outbox_bytes, most_events, most_bytes;
} Turn;

/* Whether the turn concerns nothing but the queue, and has what it works with. */
static int
find_turn(const Shortcut *self, Turn *turn)
{
    PyObject *flow = turn->flow, *appends, *later, *timer, *framed;
    turn->appends = appends = typed(self, flow, APPENDS_OF, APPENDS);
    if (appends == NULL || open_flow(self, appends) != flow || slot(appends, self->slots[OUTBOX_OF]) != turn->outbox ||
        (timer = slot(appends, self->slots[TIMER])) == NULL || timer == Py_None ||
        (framed = slot(appends, self->slots[FRAME_EVENTS])) == NULL || !PyBool_Check(framed))
        return 0;
    turn->writer = slot(appends, self->slots[WRITER_BYTES]);
    turn->queue = typed(self, appends, QUEUE, IN_FLIGHT);
    if (turn->queue == NULL || turn->writer == NULL || !PyBytes_CheckExact(turn->writer) ||
        PyBytes_GET_SIZE(turn->writer) != UUID_BYTES)
        return 0;
    turn->queued = list_at(self, turn->queue, QUEUED);
    turn->behind = typed(self, turn->queue, BEHIND, DEQUE);
    later = list_at(self, turn->queue, LATER);
    return turn->queued != NULL && turn->behind != NULL && later != NULL && PyList_GET_SIZE(later) == 0 &&
           number_at(self, turn->queue, OVERHEAD, &turn->overhead) &&
           number_at(self, turn->queue, LAST_TAKEN, &turn->last_taken) &&
           number_in(slot(appends, self->slots[REQUEST_ID]), INT64_MIN, INT64_MAX, &turn->request) &&
           number_at(self, flow, FLOW_BYTES, &turn->flow_bytes) &&
           number_at(self, turn->outbox, OUTBOX_BYTES, &turn->outbox_bytes) &&
           number_at(self, turn->outbox, BATCH_EVENTS, &turn->most_events) &&
           number_at(self, turn->outbox, BATCH_BYTES, &turn->most_bytes) && turn->most_bytes <= INT32_MAX;
}

/* Both frames of an append without its data, whose size is given, to memory of MAX_TEMPLATE bytes each; behind the end
   is an event without data. */
static void
fill_frames(const Shortcut *self, unsigned char *block, unsigned char *end, PyObject *writer, Py_ssize_t size,
            int64_t count, int64_t number, int64_t request)
{
    Py_ssize_t of_block = PyBytes_GET_SIZE(self->head);
    memcpy(block, PyBytes_AS_STRING(self->head), of_block);
    memcpy(end, PyBytes_AS_STRING(self->end), PyBytes_GET_SIZE(self->end));
    store32(block + 4, (uint32_t)(of_block - HEADER_BYTES + size));
    memcpy(block + self->positions[0], PyBytes_AS_STRING(writer), UUID_BYTES);
    memcpy(end + self->positions[1], PyBytes_AS_STRING(writer), UUID_BYTES);
    store32(end + self->positions[2], (uint32_t)size);
    store32(end + self->positions[3], (uint32_t)count);
    store64(end + self->positions[4], (uint64_t)number);
    store64(end + self->positions[5], (uint64_t)request);
}

/* The header of an event: `event`, which has its type, with the size of a piece. */
static char *
add_header(char *at, const unsigned char *event, PyObject *piece)
{
    memcpy(at, event, HEADER_BYTES);
    store32((unsigned char *)at + 4, (uint32_t)PyBytes_GET_SIZE(piece));
    return at + HEADER_BYTES;
}

typedef struct {
    const unsigned char *bytes;
    Py_ssize_t size;
} Bytes;

/* Adds the items of the next append to `items`; how many bytes they take, or -1 if there are none that it can send. */
static int64_t
look(const Shortcut *self, const Turn *turn, PyObject *items, int64_t *events)
{
    int64_t size = 0, count;
    *events = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(turn->queued) && (i == 0 || *events < turn->most_events); i++) {
        PyObject *item = PyList_GET_ITEM(turn->queued, i), *data;
        if (!Py_IS_TYPE(item, self->types[PENDING]) || (data = slot(item, self->slots[DATA])) == NULL ||
            !PyBytes_CheckExact(data) ||
            !number_in(slot(item, self->slots[EVENTS]), 0, INT32_MAX / 2, &count) || *events > INT32_MAX / 2)
            return -1;
        int64_t bytes = PyBytes_GET_SIZE(data) + turn->overhead;
        if (bytes > turn->most_bytes - size) {
            if (i == 0)
                return -1;
            break;
        }
        if (PyList_Append(items, item) < 0)
            return -1;
        *events += count;
        size += bytes;
    }
    return PyList_GET_SIZE(items) == 0 ? -1 : size;
}

/* Makes room for more bytes at the end of what is to be written; where they go, or NULL. `joined`, which is the last
   part of it, is made if it is NULL. */
static unsigned char *
make_room(const Shortcut *self, PyObject *outbox, PyObject **joined, Py_ssize_t size)
{
    PyObject *out = list_at(self, outbox, OUT);
    if (out == NULL)
        return NULL;
    if (*joined == NULL) {
        PyObject *made = PyByteArray_FromStringAndSize(NULL, 0);
        if (made == NULL || PyList_Append(out, made) < 0) {
            Py_XDECREF(made);
            return NULL;
        }
        *joined = made;
    }
    Py_ssize_t before = PyByteArray_GET_SIZE(*joined);
    if (PyByteArray_Resize(*joined, before + size) < 0)
        return NULL;
    return (unsigned char *)PyByteArray_AS_STRING(*joined) + before;
}

/* Adds to what is to be written: `size` bytes before items, the items, each behind a header if `event` is not NULL, and
   `size` bytes behind them. A last item that is large is only its header. 0, or -1 with an exception. */
static int
add_items(const Shortcut *self, PyObject *outbox, PyObject **joined, Bytes before, PyObject *items, Py_ssize_t from,
          Py_ssize_t to, const unsigned char *event, Bytes behind)
{
    Py_ssize_t size = before.size + behind.size;
    for (Py_ssize_t i = from; i < to; i++) {
        Py_ssize_t bytes = PyBytes_GET_SIZE(slot(PyList_GET_ITEM(items, i), self->slots[DATA]));
        size += (event == NULL ? 0 : HEADER_BYTES) + (bytes < LARGE_BYTES ? bytes : 0);
    }
    char *at = size == 0 ? NULL : (char *)make_room(self, outbox, joined, size);
    if (at == NULL)
        return size == 0 ? 0 : -1;
    memcpy(at, before.bytes, before.size);
    at += before.size;
    for (Py_ssize_t i = from; i < to; i++) {
        PyObject *data = slot(PyList_GET_ITEM(items, i), self->slots[DATA]);
        if (event != NULL)
            at = add_header(at, event, data);
        if (PyBytes_GET_SIZE(data) < LARGE_BYTES) {
            memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
            at += PyBytes_GET_SIZE(data);
        }
    }
    memcpy(at, behind.bytes, behind.size);
    return 0;
}

/* Adds the frames of an append to what is to be written, large items as they are; 0, or -1 with an exception. */
static int
write_append(const Shortcut *self, const Turn *turn, PyObject **joined, PyObject *items, int64_t events)
{
    unsigned char block[MAX_TEMPLATE], end[MAX_TEMPLATE], *event = NULL;
    Py_ssize_t from = 0, size = 0, of_end = self->positions[6];
    if (slot(turn->appends, self->slots[FRAME_EVENTS]) == Py_True)
        event = end + of_end;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++)
        size += (event == NULL ? 0 : HEADER_BYTES) +
                PyBytes_GET_SIZE(slot(PyList_GET_ITEM(items, i), self->slots[DATA]));
    fill_frames(self, block, end, turn->writer, size, events, turn->last_taken + events, turn->request);
    Bytes before = {block, PyBytes_GET_SIZE(self->head)}, nothing = {end, 0};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *data = slot(PyList_GET_ITEM(items, i), self->slots[DATA]);
        if (PyBytes_GET_SIZE(data) < LARGE_BYTES)
            continue;
        PyObject *out = list_at(self, turn->outbox, OUT);
        if (add_items(self, turn->outbox, joined, before, items, from, i + 1, event, nothing) < 0 ||
            PyList_Append(out, data) < 0)
            return -1;
        Py_CLEAR(*joined);
        before.size = 0;
        from = i + 1;
    }
    return add_items(self, turn->outbox, joined, before, items, from, PyList_GET_SIZE(items), event,
                     (Bytes){end, of_end});
}

/* Removes what was added to `out` behind its first `count` parts, the last of which is `joined` and had `size` bytes.
   Both shrink, which fails only if memory has run out twice. */
static void
take_back(PyObject *out, Py_ssize_t count, PyObject *joined, Py_ssize_t size)
{
    if (PyList_SetSlice(out, count, PyList_GET_SIZE(out), NULL) < 0)
        PyErr_Clear();
    if (joined != NULL && PyByteArray_Resize(joined, size) < 0)
        PyErr_Clear();
}

/* Moves items from the queue to an append in flight; 0, or -1 if nothing has changed. numbers: its first, its last, and
   its size, and the bytes in flight of the flow and of the outbox; consumed if it is 0. The methods of a deque run no
   code of Python, and are called by name: the garbage collector knows bound ones. */
static int
move_items(const Shortcut *self, const Turn *turn, PyObject *append, PyObject *items, PyObject *numbers[5])
{
    int is_oldest = slot(turn->queue, self->slots[OLDEST]) == Py_None;
    if (!is_oldest) {
        PyObject *added = PyObject_CallMethodOneArg(turn->behind, self->method, append);
        if (added == NULL)
            return -1;
        Py_DECREF(added);
    }
    if (PyList_SetSlice(turn->queued, 0, PyList_GET_SIZE(items), NULL) < 0) {
        PyErr_Clear();
        if (!is_oldest)
            Py_XDECREF(PyObject_CallMethodNoArgs(turn->behind, self->other_method));
        return -1;
    }
    set_slot(append, self->slots[FIRST], numbers[0]);
    set_slot(turn->queue, self->slots[LAST_TAKEN], Py_NewRef(numbers[1]));
    set_slot(append, self->slots[LAST], numbers[1]);
    set_slot(append, self->slots[SIZE], numbers[2]);
    set_slot(turn->flow, self->slots[FLOW_BYTES], numbers[3]);
    set_slot(turn->outbox, self->slots[OUTBOX_BYTES], numbers[4]);
    if (is_oldest)
        set_slot(turn->queue, self->slots[OLDEST], Py_NewRef(append));
    return 0;
}

/* Sends one append of the items that fit; its size, or -1 if nothing has changed. */
static int64_t
send_append(const Shortcut *self, Turn *turn, PyObject **joined, PyObject *append, PyObject *items)
{
    int64_t events, size;
    PyObject *out = list_at(self, turn->outbox, OUT);
    if (out == NULL || !find_turn(self, turn) || (size = look(self, turn, items, &events)) < 0)
        return -1;
    PyObject *numbers[] = {
        PyLong_FromLongLong(turn->last_taken + 1), PyLong_FromLongLong(turn->last_taken + events),
        PyLong_FromLongLong(size), PyLong_FromLongLong(turn->flow_bytes + size),
        PyLong_FromLongLong(turn->outbox_bytes + size),
    };
    int status = 0;
    for (int i = 0; i < 5; i++)
        status = numbers[i] == NULL ? -1 : status;
    Py_INCREF(out);
    Py_ssize_t count = PyList_GET_SIZE(out);
    if (*joined != NULL && (count == 0 || PyList_GET_ITEM(out, count - 1) != *joined))
        Py_CLEAR(*joined); /* a finalizer has written it */
    PyObject *before = Py_XNewRef(*joined);
    Py_ssize_t before_bytes = before == NULL ? 0 : PyByteArray_GET_SIZE(before);
    if (status == 0 && (write_append(self, turn, joined, items, events) < 0 ||
                        move_items(self, turn, append, items, numbers) < 0)) {
        PyErr_Clear();
        take_back(out, count, before, before_bytes);
        Py_XSETREF(*joined, Py_XNewRef(before));
        status = -1;
    }
    for (int i = 0; i < 5 && status < 0; i++)
        Py_XDECREF(numbers[i]);
    Py_XDECREF(before);
    Py_DECREF(out);
    return status < 0 ? -1 : size;
}

/* Sends what is queued, up to the limit of a turn: 1, 0 if Python has to go on with it, or -1 with an exception. */
static int
send_queued(const Shortcut *self, Turn *turn, PyObject **joined)
{
    int64_t left, size;
    int is_left;
    if (!number_at(self, turn->outbox, LEFT_BYTES, &left))
        return 0;
    do {
        if (left <= 0)
            return turn->queued == NULL ? 0 : call(turn->flow, "ask_turn");
        PyObject *now_s = Py_XNewRef(slot(turn->outbox, self->slots[NOW_S]));
        PyObject *items = PyList_New(0), *append = NULL;
        if (items != NULL && now_s != NULL) {
            PyObject *with[] = {Py_None, Py_None, items, Py_None, now_s};
            append = PyObject_Vectorcall((PyObject *)self->types[APPEND], with, 5, NULL);
        }
        size = append == NULL ? -1 : send_append(self, turn, joined, append, items);
        PyObject *queued = size < 0 ? NULL : Py_NewRef(turn->queued); /* what is released may run code, and release it */
        Py_XDECREF(now_s);
        Py_XDECREF(items);
        Py_XDECREF(append);
        is_left = queued != NULL && PyList_GET_SIZE(queued) > 0;
        Py_XDECREF(queued);
        if (size < 0) {
            PyErr_Clear(); /* no memory: Python tries as well, and says so */
            PyObject *rest = PyLong_FromLongLong(left);
            if (rest != NULL)
                set_slot(turn->outbox, self->slots[LEFT_BYTES], rest);
            return rest == NULL ? -1 : 0;
        }
        left -= size;
    } while (is_left);
    return 1;
}

/* Runs the turn of a flow, in Python where C does not go on; 1, or -1 with an exception. */
static int
run_turn(const Shortcut *self, Turn *turn, PyObject **joined)
{
    PyObject *most = Py_XNewRef(slot(turn->outbox, self->slots[MOST_BYTES]));
    set_slot(turn->flow, self->slots[ASKED], Py_NewRef(Py_False));
    set_slot(turn->outbox, self->slots[LEFT_BYTES], most);
    int status = send_queued(self, turn, joined);
    if (status != 0)
        return status;
    Py_CLEAR(*joined); /* other frames go behind it */
    PyObject *in_python = Py_XNewRef(slot(turn->flow, self->slots[IN_PYTHON])), *done = NULL;
    PyObject *closed = Py_XNewRef(slot(turn->flow, self->slots[CLOSED]));
    int is_closed = in_python == Py_None;
    if (in_python == NULL || (!is_closed && closed == NULL))
        PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '%s'", Py_TYPE(turn->flow)->tp_name,
                     in_python == NULL ? "turn" : "closed");
    else if (is_closed || (is_closed = PyObject_IsTrue(closed)) > 0)
        done = Py_NewRef(Py_None);
    else if (is_closed == 0)
        done = PyObject_CallNoArgs(in_python);
    Py_XDECREF(closed);
    Py_XDECREF(in_python);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

PyObject *
run_turns(const Shortcut *self, PyObject *const *args)
{
    PyObject *outbox = args[0], *flows = args[1], *joined = NULL;
    int status = 1, known = Py_IS_TYPE(outbox, self->types[OUTBOX]) && PyList_CheckExact(flows);
    for (Py_ssize_t i = 0; known && i < PyList_GET_SIZE(flows); i++)
        known = PyObject_TypeCheck(PyList_GET_ITEM(flows, i), self->types[SENDER]);
    if (!known)
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(flows) && status > 0; i++) {
        Turn turn = {.outbox = outbox, .flow = Py_NewRef(PyList_GET_ITEM(flows, i))};
        if (PyObject_TypeCheck(turn.flow, self->types[SENDER])) /* another turn may have changed the list */
            status = run_turn(self, &turn, &joined);
        PyObject *problem = status < 0 ? exception_of_call() : NULL;
        if (problem != NULL)
            status = report(turn.flow, "fail", problem);
        Py_DECREF(turn.flow);
    }
    Py_CLEAR(joined);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* --- acknowledge(acks, flows, counters) ---------------------------------------------------------------------------- */

#define FLOWS_DISABLED 0 /* of segstore.wire.request_id */

typedef struct {
    const unsigned char *writer; /* UUID_BYTES */
    int64_t number, previous, request, length;
} Ack;

/* Reads the acknowledgement that a frame is; 0 if it is of another command. */
static int
read_ack(const Shortcut *self, const unsigned char *frame, Ack *ack)
{
    if (memcmp(frame, PyBytes_AS_STRING(self->end), HEADER_BYTES) != 0)
        return 0;
    ack->writer = frame + self->positions[0];
    ack->number = load64(frame + self->positions[1]);
    ack->previous = load64(frame + self->positions[2]);
    ack->request = load64(frame + self->positions[3]);
    ack->length = load64(frame + self->positions[4]);
    return 1;
}

/* Whether flow 0 owns the connection beside other flows, so that it gets all acknowledgements. Also 1 with an
   exception. */
static int
has_owner(PyObject *flows)
{
    if (PyDict_GET_SIZE(flows) < 2)
        return 0;
    PyObject *key = PyLong_FromLong(FLOWS_DISABLED);
    int has = key == NULL ? -1 : PyDict_Contains(flows, key);
    Py_XDECREF(key);
    return has != 0;
}

/* The flow of an acknowledgement; NULL if Python has to look. A new reference. */
static PyObject *
flow_of(const Shortcut *self, PyObject *flows, const Ack *ack)
{
    PyObject *key = PyLong_FromLongLong(ack->request >> 32);
    PyObject *flow = key == NULL ? NULL : PyDict_GetItemWithError(flows, key);
    Py_XDECREF(key);
    if (flow == NULL)
        PyErr_Clear();
    return flow != NULL && PyObject_TypeCheck(flow, self->types[SENDER]) ? Py_NewRef(flow) : NULL;
}

/* Removes the oldest append of a queue, if it is the one that is acknowledged; a new reference to its items, or NULL if
   nothing has changed. */
static PyObject *
release(const Shortcut *self, PyObject *flow, PyObject *outbox, PyObject *queue, const Ack *ack)
{
    int64_t stored, first, last, size, full_at, settled, known, flow_bytes, outbox_bytes;
    PyObject *append = typed(self, queue, OLDEST, APPEND), *behind = typed(self, queue, BEHIND, DEQUE);
    PyObject *items = append == NULL ? NULL : list_at(self, append, ITEMS);
    if (items == NULL || behind == NULL || !number_at(self, append, FIRST, &first) ||
        !number_at(self, append, LAST, &last) || ack->number != last || ack->previous >= first ||
        !number_at(self, append, SIZE, &size) || !number_at(self, queue, FULL_AT, &full_at) ||
        !number_at(self, queue, SETTLED, &settled) || !number_at(self, queue, SEGMENT_LENGTH, &known) ||
        !number_at(self, queue, LAST_STORED, &stored) || !number_at(self, flow, FLOW_BYTES, &flow_bytes) ||
        !number_at(self, outbox, OUTBOX_BYTES, &outbox_bytes))
        return NULL;
    enum { IS_FULL, IS_SETTLED, IN_FLOW, IN_OUTBOX, IS_LENGTH, NUMBERS };
    PyObject *numbers[NUMBERS] = {
        PyLong_FromLongLong(full_at + size), PyLong_FromLongLong(settled + PyList_GET_SIZE(items)),
        PyLong_FromLongLong(flow_bytes - size), PyLong_FromLongLong(outbox_bytes - size),
        PyLong_FromLongLong(ack->length > known ? ack->length : known),
    };
    PyObject *next = Py_NewRef(Py_None);
    int made = 1;
    for (int i = 0; i < NUMBERS; i++)
        made = made && numbers[i] != NULL;
    if (made && Py_SIZE(behind) > 0)
        Py_SETREF(next, PyObject_CallMethodNoArgs(behind, self->other_method));
    if (!made || next == NULL) {
        PyErr_Clear();
        for (int i = 0; i < NUMBERS; i++)
            Py_XDECREF(numbers[i]);
        Py_XDECREF(next);
        return NULL;
    }
    Py_INCREF(items);
    set_slot(queue, self->slots[FULL_AT], numbers[IS_FULL]);
    set_slot(queue, self->slots[SETTLED], numbers[IS_SETTLED]);
    set_slot(flow, self->slots[FLOW_BYTES], numbers[IN_FLOW]);
    set_slot(outbox, self->slots[OUTBOX_BYTES], numbers[IN_OUTBOX]);
    set_slot(queue, self->slots[SEGMENT_LENGTH], numbers[IS_LENGTH]);
    set_slot(queue, self->slots[LAST_STORED], Py_NewRef(slot(append, self->slots[LAST])));
    set_slot(queue, self->slots[OLDEST], next);
    return items;
}

/* The items that an acknowledgement covers, which are removed from the queue; NULL if Python has to look. */
static PyObject *
settle(const Shortcut *self, PyObject *flow, const Ack *ack)
{
    PyObject *appends = typed(self, flow, APPENDS_OF, APPENDS);
    if (appends == NULL || open_flow(self, appends) != flow)
        return NULL;
    PyObject *own = slot(appends, self->slots[WRITER_BYTES]), *queue = typed(self, appends, QUEUE, IN_FLIGHT);
    PyObject *outbox = typed(self, appends, OUTBOX_OF, OUTBOX);
    if (own == NULL || !PyBytes_CheckExact(own) || PyBytes_GET_SIZE(own) != UUID_BYTES ||
        memcmp(PyBytes_AS_STRING(own), ack->writer, UUID_BYTES) != 0 || queue == NULL || outbox == NULL)
        return NULL;
    return release(self, flow, outbox, queue, ack);
}

/* What a callback raised goes to the handler of its flow; 1, or -1 with an exception. `problem` is consumed. */
static int
report_callback(PyObject *flow, PyObject *problem)
{
    PyObject *handler = PyObject_GetAttrString(flow, "handler");
    if (handler == NULL) {
        Py_DECREF(problem);
        return -1;
    }
    int status = report(handler, "callback_failed", problem);
    Py_DECREF(handler);
    return status;
}

/* Wakes who waits for acknowledgements; 1, or -1 with an exception. */
static int
settle_waits(PyObject *flow)
{
    PyObject *handler = PyObject_GetAttrString(flow, "handler");
    int status = handler == NULL ? -1 : call(handler, "settle");
    Py_XDECREF(handler);
    return status;
}

/* Completes what waits for all items; not for one of another class. */
static int
complete_all(const Shortcut *self, PyObject *flow, PyObject *items)
{
    int status = 1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items) && status > 0; i++) {
        PyObject *item = PyList_GET_ITEM(items, i), *problem;
        PyObject *done = Py_IS_TYPE(item, self->types[PENDING]) ? Py_XNewRef(slot(item, self->slots[DONE])) : NULL;
        if (done == NULL)
            continue;
        status = complete(self, done, self->types[FUTURE], self->types[INVALID_STATE], &problem);
        Py_DECREF(done);
        if (status == 0)
            status = report_callback(flow, problem);
    }
    return status;
}

/* What is queued when nothing is in flight has waited for the acknowledgement. 1, or -1 with an exception. */
static int
go_on(const Shortcut *self, PyObject *flow)
{
    PyObject *appends = typed(self, flow, APPENDS_OF, APPENDS);
    PyObject *queue = appends == NULL ? NULL : typed(self, appends, QUEUE, IN_FLIGHT);
    PyObject *queued = queue == NULL ? NULL : list_at(self, queue, QUEUED);
    if (queued == NULL || PyList_GET_SIZE(queued) == 0 || slot(queue, self->slots[OLDEST]) != Py_None ||
        slot(flow, self->slots[ASKED]) != Py_False || slot(flow, self->slots[CLOSED]) != Py_False)
        return 1;
    return call(flow, "ask_turn");
}

/* Settles what an acknowledgement covers: 1, 0 if Python has to look, or -1 with an exception. */
static int
acknowledge_one(const Shortcut *self, PyObject *flow, const Ack *ack)
{
    PyObject *appends = Py_XNewRef(slot(flow, self->slots[APPENDS_OF]));
    PyObject *items = settle(self, flow, ack);
    int status = items == NULL ? 0 : complete_all(self, flow, items);
    if (status > 0 && slot(appends, self->slots[AWAITED]) == Py_True)
        status = settle_waits(flow);
    if (status > 0)
        status = go_on(self, flow);
    Py_XDECREF(items);
    Py_XDECREF(appends);
    PyObject *problem = status < 0 ? exception_of_call() : NULL;
    return problem == NULL ? status : report(flow, "fail", problem);
}

/* Passes the frames from `at` on to Python; 1, or -1 with an exception. */
static int
acknowledge_behind(const Shortcut *self, PyObject *frames, Py_ssize_t at, PyObject *unpack, PyObject *const *args)
{
    PyObject *rest = PySequence_GetSlice(frames, at, PY_SSIZE_T_MAX), *rows = NULL, *done = NULL;
    if (rest != NULL)
        rows = PyObject_CallFunctionObjArgs((PyObject *)self->types[ROWS], rest, unpack, NULL);
    if (rows != NULL)
        done = PyObject_CallFunctionObjArgs(self->behind, rows, args[1], args[2], NULL);
    Py_XDECREF(rest);
    Py_XDECREF(rows);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* Settles acknowledgements up to one that Python has to look at, which goes to Python with all behind it: 1, 0 if that
   is the first one, or -1 with an exception. */
static int
acknowledge_all(const Shortcut *self, PyObject *frames, const Py_buffer *held, PyObject *unpack, PyObject *const *args)
{
    Py_ssize_t size = PyBytes_GET_SIZE(self->end);
    int status = 1;
    for (Py_ssize_t at = 0; status > 0 && at < held->len; at += size) {
        Ack ack;
        PyObject *flow = read_ack(self, (unsigned char *)held->buf + at, &ack) ? flow_of(self, args[1], &ack) : NULL;
        status = flow == NULL ? 0 : acknowledge_one(self, flow, &ack);
        Py_XDECREF(flow);
        if (status == 0 && at > 0)
            return acknowledge_behind(self, frames, at, unpack, args);
    }
    return status;
}

PyObject *
acknowledge(const Shortcut *self, PyObject *const *args)
{
    if (!Py_IS_TYPE(args[0], self->types[ROWS]) || !PyDict_CheckExact(args[1]) || has_owner(args[1]))
        return NULL;
    PyObject *frames = slot(args[0], self->slots[FRAMES]), *unpack = slot(args[0], self->slots[UNPACK]), *done = NULL;
    Py_buffer held;
    if (frames == NULL || unpack == NULL || hold(frames, &held) < 0)
        return NULL;
    Py_INCREF(frames);
    Py_INCREF(unpack);
    if (held.len % PyBytes_GET_SIZE(self->end) == 0 && acknowledge_all(self, frames, &held, unpack, args) > 0)
        done = Py_NewRef(Py_None);
    PyBuffer_Release(&held);
    Py_DECREF(frames);
    Py_DECREF(unpack);
    return done;
}
