/* What a recorder does with all bytes: finds whole frames, makes columns of their records, and keeps copies; see
   segstore.wire.trace.framing. */

#include "speed.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define AHEAD 64
#define FEW 256
#define MANY_BYTES 4096 /* copies from this size bypass the cache */
#define IS_LOOKED_AT(mark) ((mark) & 1) /* marks of segstore.wire.trace.framing.marked */
#define IS_REQUEST(mark) ((mark) < 2)
#define COLUMN_BYTES 26 /* of a record: three int64 and two bytes */

/* Frames that one stream has completed at a time. They are copied, because they may lie anywhere. */
typedef struct {
    int64_t ts_ns, stream; /* connection << 1 | direction */
    int64_t frames;
} Run;

typedef struct {
    const unsigned char *bytes;
    int64_t most; /* bytes of a frame behind its header */
    const char *looked_at;
    Py_ssize_t at, count, room; /* the position behind the frames that were found, and how many; room: for sizes */
    Py_ssize_t requests;        /* how many of them are requests, if they come from a client */
    int32_t *sizes;             /* of the frames; `few`, or owned */
    int32_t few[FEW];
} Search;

static inline Run
run_at(PyObject *runs, Py_ssize_t index)
{
    Run run;
    memcpy(&run, PyBytes_AS_STRING(runs) + index * (Py_ssize_t)sizeof(Run), sizeof(Run));
    return run;
}

static void
search_init(Search *search, const Py_buffer *data, int64_t most, const char *looked_at)
{
    search->bytes = data->buf;
    search->most = most;
    search->looked_at = looked_at;
    search->at = search->count = search->requests = 0;
    search->room = FEW;
    search->sizes = search->few;
}

static void
search_clear(Search *search)
{
    if (search->sizes != search->few)
        PyMem_Free(search->sizes);
}

/* Room for more sizes; -1 with MemoryError. */
static int
make_room(Search *search)
{
    Py_ssize_t room = 4 * search->room; /* in bytes, at most twice what the frames so far take */
    int32_t *sizes = PyMem_Malloc(room * sizeof(*sizes));
    if (sizes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(sizes, search->sizes, search->count * sizeof(*sizes));
    search_clear(search);
    search->sizes = sizes;
    search->room = room;
    return 0;
}

/* Finds whole frames from the position on, before `stop`, which is inside of the bytes; -1 with an exception. */
static int
find_frames(Search *search, Py_ssize_t stop)
{
    const unsigned char *bytes = search->bytes;
    Py_ssize_t at = search->at, before = at, count = search->count;
    while (stop - at >= HEADER_BYTES) {
        int64_t length = load32(bytes + at + 4);
        char mark = search->looked_at[bytes[at + 3]];
        if (length < 0 || length > search->most || length > stop - at - HEADER_BYTES || IS_LOOKED_AT(mark))
            break;
        Py_ssize_t end = at + HEADER_BYTES + (Py_ssize_t)length, ahead = AHEAD * (end - before);
        if (ahead < stop - end)
            will_read(bytes + end + ahead, 1); /* pairs of frames are often as long as the one before */
        search->count = count;
        if (count == search->room && make_room(search) < 0)
            return -1;
        search->sizes[count++] = (int32_t)(end - at);
        search->requests += IS_REQUEST(mark);
        before = at;
        at = end;
    }
    search->at = at;
    search->count = count;
    return 0;
}

PyObject *
whole_frames(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    Py_buffer data;
    int64_t at, most;
    if (!number_in(args[2], 0, INT32_MAX - HEADER_BYTES, &most) || !PyBytes_CheckExact(args[3]) ||
        PyBytes_GET_SIZE(args[3]) != 256 || hold(args[0], &data) < 0)
        return NULL;
    PyObject *made = NULL;
    if (number_in(args[1], 0, data.len, &at)) {
        Search search;
        search_init(&search, &data, most, PyBytes_AS_STRING(args[3]));
        search.at = (Py_ssize_t)at;
        if (find_frames(&search, data.len) == 0)
            made = Py_BuildValue("ny#n", search.at, (char *)search.sizes,
                                 search.count * (Py_ssize_t)sizeof(*search.sizes), search.requests);
        search_clear(&search);
    }
    PyBuffer_Release(&data);
    return made;
}

/* --- columns ----------------------------------------------------------------------------------------------------- */

/* Puts a number into a column of int64, as a trace has it: little-endian. */
static inline void
put(char *column, Py_ssize_t row, int64_t number)
{
#if PY_BIG_ENDIAN
    number = (int64_t)__builtin_bswap64((uint64_t)number);
#endif
    memcpy(column + row * (Py_ssize_t)sizeof(number), &number, sizeof(number));
}

/* 0 if runs have this number of frames, else -1. */
static int
check_runs(PyObject *runs, Py_ssize_t count)
{
    Py_ssize_t left = count, size = PyBytes_GET_SIZE(runs), width = (Py_ssize_t)sizeof(Run);
    for (Py_ssize_t i = 0; i < size / width; i++) {
        Run run = run_at(runs, i);
        if (run.stream < 0 || run.frames < 0 || run.frames > left)
            return -1;
        left -= (Py_ssize_t)run.frames;
    }
    return left == 0 && size % width == 0 ? 0 : -1;
}

/* Fills the columns of `all` rows, from `row` on, with the frames of runs, which have as many as there are sizes. */
static void
fill_columns(char *columns, Py_ssize_t all, Py_ssize_t row, int64_t end, PyObject *runs, const char *sizes)
{
    char *times = columns, *connections = times + 8 * all, *ends = connections + 8 * all, *ways = ends + 8 * all;
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(runs) / (Py_ssize_t)sizeof(Run); i++) {
        Run run = run_at(runs, i);
        for (; run.frames > 0; run.frames--, row++, sizes += sizeof(int32_t)) {
            int32_t size;
            memcpy(&size, sizes, sizeof(size));
            end += size;
            put(times, row, run.ts_ns);
            put(connections, row, run.stream >> 1);
            put(ends, row, end);
            ways[row] = (char)(run.stream & 1);
            ways[all + row] = 0; /* RecordKind.FRAME */
        }
    }
}

/* Runs and sizes are bytes, which cannot be the memory of the columns: they do not change while these are filled. */
PyObject *
frames_into(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    Py_buffer columns;
    int64_t all, row, start;
    PyObject *runs = args[4], *sizes = args[5];
    if (!number_in(args[3], 0, INT64_MAX >> 2, &start) || !PyBytes_CheckExact(runs) || !PyBytes_CheckExact(sizes))
        return NULL;
    Py_ssize_t count = PyBytes_GET_SIZE(sizes) / (Py_ssize_t)sizeof(int32_t);
    if (PyBytes_GET_SIZE(sizes) % (Py_ssize_t)sizeof(int32_t) != 0 || check_runs(runs, count) < 0 ||
        hold_writable(args[0], &columns) < 0)
        return NULL;
    int fits = number_in(args[1], 0, columns.len / COLUMN_BYTES, &all) && number_in(args[2], 0, all, &row) &&
               count <= all - row;
    if (fits)
        fill_columns(columns.buf, (Py_ssize_t)all, (Py_ssize_t)row, start, runs, PyBytes_AS_STRING(sizes));
    PyBuffer_Release(&columns);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* --- add(writer, ts_ns, connection, direction, data, lasting) ----------------------------------------------------- */

#define STEP_BYTES (32 * 1024) /* copied at a time: they stay in the cache while frames are looked for */
#define LASTING_BYTES (64 * 1024) /* LASTING_BYTES of segstore.wire.trace.writer */

/* Classes of a writer's objects, and their slots, in the order in which Python names them. */
enum { WRITER, RECORDS_TYPE, NUMBERS };
enum {
    DUE_NS, HELD, LOOKED_AT, MAX_BODY, MEMORY_BYTES, PART_START, PART_STOP, RECORDS, TAKEN_BYTES, USED, VIEW, WAITS,
    BLOCK_BYTES, FLUSH_AFTER_NS, REQUESTS,
    PARTS, FIRST_NS, FRAMES_START, LAST_NS, OVERHEAD, RUNS, RECORDED_BYTES, SIZES, TIMES
};
#define MOST_OVERHEAD 2 /* _MOST_OVERHEAD of segstore.wire.trace.writer */
#define PART_BYTES 400  /* _RUN_BYTES of it */

/* What adding changes of the writer and its records. */
typedef struct {
    int64_t due_ns, part_start, part_stop, size, used, first_ns, last_ns, overhead, recorded, frames_start, requests;
} Counts;

/* Bytes of one direction, what the writer has, and what is found. The writer and its memory are borrowed. */
typedef struct {
    Py_buffer data;
    PyObject *writer, *view, *of_data; /* of_data: a memoryview, of which parts are kept, or NULL: copied */
    PyObject *records, *held, *runs, *sizes, *parts, *half, *key; /* owned */
    int64_t ts_ns, stream, flush_after_ns, max_body, memory_bytes, block_bytes;
    Counts was, now;
    Py_ssize_t of_half, first; /* bytes of the incomplete frame that is continued, and where it ends in the data */
    int64_t need;              /* bytes of the frame that is incomplete at the end; 0 if there is none */
    Search search;             /* of the frames behind the first; the last member: it is not cleared */
} Recorded;

/* Copies bytes to memory that does not overlap. They are not read soon: many of them bypass the cache, where others
   are of more use. */
static void
copy_bytes(char *to, const char *from, Py_ssize_t size)
{
#ifdef __SSE2__
    Py_ssize_t first = (Py_ssize_t)(-(uintptr_t)to % LINE_BYTES);
    if (size >= MANY_BYTES) {
        memcpy(to, from, first);
        for (to += first, from += first, size -= first; size >= LINE_BYTES;
             to += LINE_BYTES, from += LINE_BYTES, size -= LINE_BYTES) {
            const __m128i *line = (const __m128i *)from;
            __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1), c = _mm_loadu_si128(line + 2),
                    d = _mm_loadu_si128(line + 3);
            _mm_stream_si128((__m128i *)to, a);
            _mm_stream_si128((__m128i *)to + 1, b);
            _mm_stream_si128((__m128i *)to + 2, c);
            _mm_stream_si128((__m128i *)to + 3, d);
        }
        _mm_sfence();
    }
#endif
    memcpy(to, from, size);
}

/* Finds what the writer has; 0 if something precedes the frames. */
static int
find_writer(const Shortcut *self, Recorded *to)
{
    const Py_ssize_t *slots = self->slots;
    PyObject *writer = to->writer, *records = slot(writer, slots[RECORDS]);
    if (records == NULL || !Py_IS_TYPE(records, self->types[RECORDS_TYPE]))
        return 0;
    to->records = Py_NewRef(records);
    to->held = Py_XNewRef(slot(writer, slots[HELD]));
    to->runs = Py_XNewRef(slot(records, slots[RUNS]));
    to->sizes = Py_XNewRef(slot(records, slots[SIZES]));
    to->parts = Py_XNewRef(slot(records, slots[PARTS]));
    to->view = slot(writer, slots[VIEW]);
    if (to->held == NULL || !PyDict_CheckExact(to->held) || to->runs == NULL || !PyByteArray_CheckExact(to->runs) ||
        to->sizes == NULL || !PyByteArray_CheckExact(to->sizes) || to->parts == NULL ||
        !PyList_CheckExact(to->parts) || to->view == NULL || !PyMemoryView_Check(to->view))
        return 0;
    const struct {
        PyObject *owner;
        int slot;
        int64_t *number;
    } numbers[] = {
        {writer, DUE_NS, &to->was.due_ns}, {writer, MAX_BODY, &to->max_body},
        {writer, MEMORY_BYTES, &to->memory_bytes}, {writer, PART_START, &to->was.part_start},
        {writer, PART_STOP, &to->was.part_stop}, {writer, TAKEN_BYTES, &to->was.size},
        {writer, USED, &to->was.used}, {writer, FLUSH_AFTER_NS, &to->flush_after_ns},
        {writer, BLOCK_BYTES, &to->block_bytes}, {writer, REQUESTS, &to->was.requests},
        {records, OVERHEAD, &to->was.overhead},
        {records, RECORDED_BYTES, &to->was.recorded}, {records, FRAMES_START, &to->was.frames_start},
        {records, FIRST_NS, &to->was.first_ns}, {records, LAST_NS, &to->was.last_ns},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        int of = numbers[i].slot, is_time = of == DUE_NS || of == FLUSH_AFTER_NS || of == FIRST_NS || of == LAST_NS;
        if (!number_in(slot(numbers[i].owner, slots[of]), is_time ? INT64_MIN : 0, is_time ? INT64_MAX : INT64_MAX / 8,
                       numbers[i].number))
            return 0;
    }
    to->now = to->was;
    if (to->max_body > INT32_MAX - HEADER_BYTES || to->flush_after_ns < 0 || to->ts_ns > INT64_MAX - to->flush_after_ns)
        return 0;
    if (slot(writer, slots[WAITS]) == Py_False)
        to->now.due_ns = to->ts_ns + to->flush_after_ns;
    else if (slot(writer, slots[WAITS]) != Py_True)
        return 0;
    if (to->now.part_start < to->now.part_stop && to->now.part_stop != to->now.used)
        return 0;
    PyObject *times = slot(records, slots[TIMES]);
    if (PyByteArray_GET_SIZE(to->runs) > 0)
        return 1;
    to->now.frames_start = to->now.recorded;
    return times != NULL && Py_IS_TYPE(times, self->types[NUMBERS]) && Py_SIZE(times) == 0;
}

/* Whether the bytes begin with a frame, or complete one; if they last, with little of it. */
static int
find_start(Recorded *to)
{
    PyObject *half = PyDict_GetItemWithError(to->held, to->key);
    to->half = Py_XNewRef(half);
    if (half == NULL)
        return !PyErr_Occurred();
    if (!PyByteArray_CheckExact(half) || (to->of_half = PyByteArray_GET_SIZE(half)) < HEADER_BYTES)
        return 0;
    const unsigned char *frame = (unsigned char *)PyByteArray_AS_STRING(half);
    int64_t length = load32(frame + 4), missing = HEADER_BYTES + length - to->of_half;
    to->first = (Py_ssize_t)missing;
    return length >= 0 && length <= to->max_body && missing > 0 && missing <= to->data.len &&
           (to->of_data == NULL || missing < LASTING_BYTES) && !IS_LOOKED_AT(to->search.looked_at[frame[3]]);
}

/* Finds frames, and copies the bytes if there is memory for them; 0, or -1 with an exception. The bytes of each step
   are in the processor's cache when frames are looked for. */
static int
copy_and_find(Recorded *to, char *memory)
{
    const char *from = to->data.buf;
    Search *search = &to->search;
    search->at = to->first;
    if (memory == NULL)
        return find_frames(search, to->data.len);
    for (Py_ssize_t at = 0, stop; at < to->data.len; at = stop) {
        stop = to->data.len - at > STEP_BYTES ? at + STEP_BYTES : to->data.len;
        copy_bytes(memory + at, from + at, stop - at);
        if (search->at < stop && find_frames(search, stop) < 0)
            return -1;
    }
    return 0;
}

/* Takes the bytes to the writer's memory, behind the frame that they complete; of bytes that last, only those of that
   frame. 0, or -1: an exception, or declined if none is set. */
static int
take_bytes(Recorded *to)
{
    Py_buffer memory;
    Py_ssize_t copied = to->of_data != NULL ? to->first : to->data.len;
    if (hold_writable(to->view, &memory) < 0)
        return -1;
    const char *from = to->data.buf, *start = memory.buf;
    int status = -1;
    if (to->memory_bytes <= memory.len && to->of_half + copied <= to->memory_bytes - to->now.used &&
        (from + to->data.len <= start || start + memory.len <= from)) {
        char *at = (char *)memory.buf + to->now.used;
        if (to->half != NULL)
            memcpy(at, PyByteArray_AS_STRING(to->half), to->of_half);
        if (to->of_data != NULL)
            memcpy(at + to->of_half, from, copied);
        status = copy_and_find(to, to->of_data != NULL ? NULL : at + to->of_half);
    }
    PyBuffer_Release(&memory);
    return status;
}

/* Whether all that is behind the frames that were found is the beginning of one, whose size is set; if it lasts, a
   short one. */
static int
find_need(Recorded *to)
{
    Py_ssize_t at = to->search.at, rest = to->data.len - at;
    int64_t length = rest < HEADER_BYTES ? 0 : load32(to->search.bytes + at + 4);
    to->need = rest == 0 ? 0 : HEADER_BYTES + length;
    return at > 0 && length >= 0 && length <= to->max_body &&
           (rest == 0 || (rest < to->need && (to->of_data == NULL || rest < LASTING_BYTES)));
}

/* Adds to a bytearray; 0, or -1 with an exception. */
static int
add_bytes(PyObject *to, const void *bytes, Py_ssize_t size)
{
    Py_ssize_t before = PyByteArray_GET_SIZE(to);
    if (PyByteArray_Resize(to, before + size) < 0)
        return -1;
    memcpy(PyByteArray_AS_STRING(to) + before, bytes, size);
    return 0;
}

/* Adds a run of frames and their sizes; 0, or -1 with an exception. */
static int
add_run(const Recorded *to, int64_t count, const void *sizes)
{
    Run run = {to->ts_ns, to->stream, count};
    if (count == 0)
        return 0;
    return add_bytes(to->runs, &run, sizeof(run)) < 0 ||
                   add_bytes(to->sizes, sizes, (Py_ssize_t)count * (Py_ssize_t)sizeof(int32_t)) < 0
               ? -1
               : 0;
}

/* Adds a part of a view to the parts; 0, or -1 with an exception. */
static int
add_part(const Recorded *to, PyObject *view, int64_t start, int64_t stop)
{
    PyObject *part = PySequence_GetSlice(view, (Py_ssize_t)start, (Py_ssize_t)stop);
    int status = part == NULL ? -1 : PyList_Append(to->parts, part);
    Py_XDECREF(part);
    return status;
}

/* Adds what was copied to the newest part, and what was not to the parts; 0, or -1 with an exception. */
static int
add_data(Recorded *to)
{
    int64_t copied = to->of_half + (to->of_data != NULL ? to->first : to->search.at);
    if (copied > 0) {
        if (to->now.part_start == to->now.part_stop)
            to->now.part_start = to->now.used;
        to->now.used += copied;
        to->now.part_stop = to->now.used;
    }
    if (to->of_data == NULL || to->search.at == to->first)
        return 0;
    if (to->now.part_start < to->now.part_stop) {
        if (add_part(to, to->view, to->now.part_start, to->now.part_stop) < 0)
            return -1;
        to->now.overhead += PART_BYTES;
    }
    to->now.part_start = to->now.part_stop = 0;
    to->now.overhead += PART_BYTES;
    return add_part(to, to->of_data, to->first, to->search.at);
}

/* Sets an item of a dict again, and keeps the exception that is set. */
static void
put_back(PyObject *dict, PyObject *key, PyObject *value)
{
    PyObject *problem = take_exception();
    if (PyDict_SetItem(dict, key, value) < 0)
        PyErr_Clear();
    set_exception(problem);
}

/* Sets the incomplete frame of the stream to what is behind the last whole one; 0, or -1 with an exception. */
static int
keep_tail(const Recorded *to)
{
    PyObject *tail = NULL;
    if (to->need > 0 && (tail = PyByteArray_FromStringAndSize((char *)to->data.buf + to->search.at,
                                                               to->data.len - to->search.at)) == NULL)
        return -1;
    int status = to->half == NULL ? 0 : PyDict_DelItem(to->held, to->key); /* the newest is the last, as in Python */
    if (status == 0 && tail != NULL && (status = PyDict_SetItem(to->held, to->key, tail)) < 0 && to->half != NULL)
        put_back(to->held, to->key, to->half);
    Py_XDECREF(tail);
    return status;
}

/* Sets what has changed of the writer and its records; 0, or -1 with an exception and nothing changed. */
static int
change(const Shortcut *self, const Recorded *to)
{
    const struct {
        int slot;
        int64_t was, now;
    } counts[] = {
        {DUE_NS, to->was.due_ns, to->now.due_ns}, {TAKEN_BYTES, to->was.size, to->now.size},
        {USED, to->was.used, to->now.used}, {PART_START, to->was.part_start, to->now.part_start},
        {PART_STOP, to->was.part_stop, to->now.part_stop}, {OVERHEAD, to->was.overhead, to->now.overhead},
        {RECORDED_BYTES, to->was.recorded, to->now.recorded},
        {FRAMES_START, to->was.frames_start, to->now.frames_start}, {FIRST_NS, to->was.first_ns, to->now.first_ns},
        {LAST_NS, to->was.last_ns, to->now.last_ns}, {REQUESTS, to->was.requests, to->now.requests},
    };
    enum { COUNT = sizeof(counts) / sizeof(*counts) };
    PyObject *numbers[COUNT] = {NULL}; /* of those that have changed */
    int status = 0;
    for (int i = 0; i < COUNT; i++)
        if (counts[i].was != counts[i].now && (numbers[i] = PyLong_FromLongLong(counts[i].now)) == NULL)
            status = -1;
    if (status == 0)
        status = keep_tail(to);
    for (int i = 0; i < COUNT; i++)
        if (status < 0)
            Py_XDECREF(numbers[i]);
        else if (numbers[i] != NULL)
            set_slot(counts[i].slot < PARTS ? to->writer : to->records, self->slots[counts[i].slot], numbers[i]);
    if (status == 0)
        set_slot(to->writer, self->slots[WAITS], Py_NewRef(Py_True));
    return status;
}

/* Records bytes: 0, or -1: an exception, or declined if none is set, with nothing changed. */
static int
record(const Shortcut *self, Recorded *to)
{
    Py_ssize_t runs = PyByteArray_GET_SIZE(to->runs), sizes = PyByteArray_GET_SIZE(to->sizes);
    Py_ssize_t parts = PyList_GET_SIZE(to->parts);
    if (!find_start(to) || take_bytes(to) < 0 || !find_need(to))
        return -1;
    Py_ssize_t found = to->search.at - to->first;
    if (to->of_data != NULL && found > 0 && found < LASTING_BYTES)
        return -1; /* Python copies them */
    int32_t size = (int32_t)(to->of_half + to->first);
    int status = add_run(to, to->half != NULL, &size);
    if (status == 0)
        status = add_run(to, to->search.count, to->search.sizes);
    if (status == 0)
        status = add_data(to);
    if ((to->stream & 1) == 0) /* from a client */
        to->now.requests += to->search.requests +
                            (to->half != NULL &&
                             IS_REQUEST(to->search.looked_at[(unsigned char)PyByteArray_AS_STRING(to->half)[3]]));
    to->now.size += to->data.len;
    to->now.recorded += to->of_half + to->search.at;
    to->now.overhead += PyByteArray_GET_SIZE(to->runs) - runs + PyByteArray_GET_SIZE(to->sizes) - sizes;
    to->now.first_ns = to->ts_ns < to->now.first_ns ? to->ts_ns : to->now.first_ns;
    to->now.last_ns = to->ts_ns > to->now.last_ns ? to->ts_ns : to->now.last_ns;
    if (status == 0)
        status = change(self, to);
    if (status < 0) {
        cut(to->runs, runs);
        cut(to->sizes, sizes);
        if (PyList_GET_SIZE(to->parts) > parts) {
            PyObject *problem = take_exception();
            if (PyList_SetSlice(to->parts, parts, PY_SSIZE_T_MAX, NULL) < 0)
                PyErr_Clear();
            set_exception(problem);
        }
    }
    return status;
}

/* The garbage collector, which runs finalizers, waits meanwhile. */
PyObject *
record_bytes(const Shortcut *self, PyObject *const *args)
{
    Recorded to;
    memset(&to, 0, offsetof(Recorded, search));
    to.writer = args[0];
    int64_t connection, direction;
    if (!PyObject_TypeCheck(to.writer, self->types[WRITER]) || !number_in(args[1], INT64_MIN, INT64_MAX, &to.ts_ns) ||
        !number_in(args[2], 0, INT64_MAX >> 2, &connection) || !number_in(args[3], 0, 1, &direction) ||
        (args[5] != NULL && args[5] != Py_False && !(args[5] == Py_True && PyMemoryView_Check(args[4]))) ||
        hold(args[4], &to.data) < 0)
        return NULL;
    int collects = PyGC_Disable();
    PyObject *looked_at = Py_XNewRef(slot(to.writer, self->slots[LOOKED_AT])), *due = NULL;
    to.stream = connection << 1 | direction;
    to.of_data = args[5] == Py_True ? args[4] : NULL;
    if ((to.key = PyLong_FromLongLong(to.stream)) != NULL && looked_at != NULL && PyBytes_CheckExact(looked_at) &&
        PyBytes_GET_SIZE(looked_at) == 256 && find_writer(self, &to)) {
        search_init(&to.search, &to.data, to.max_body, PyBytes_AS_STRING(looked_at));
        if (record(self, &to) == 0)
            due = PyBool_FromLong(to.ts_ns >= to.now.due_ns || to.now.size >= to.block_bytes ||
                                  to.now.recorded >= to.block_bytes ||
                                  to.now.overhead >= MOST_OVERHEAD * to.block_bytes);
        search_clear(&to.search);
    }
    PyBuffer_Release(&to.data);
    PyObject *owned[] = {to.key, to.records, to.held, to.runs, to.sizes, to.parts, to.half, looked_at};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++)
        Py_XDECREF(owned[i]);
    if (collects)
        PyGC_Enable();
    return due;
}
