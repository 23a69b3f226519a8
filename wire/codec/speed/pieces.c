/* What a recorder does with all bytes: finds whole frames, makes columns of their records, and keeps copies; see
   segstore.wire.trace.framing. */

#include "speed.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define AHEAD 4
#define FEW 1024
#define SMALL_BYTES 4096 /* SMALL_BYTES of segstore.wire.trace.writer */
#define COLUMN_BYTES 26 /* of a record: three int64 and two bytes */

/* Three numbers of pieces and of runs. They are copied, because they may lie anywhere. */
typedef struct {
    int64_t ts_ns, stream; /* connection << 1 | direction */
    int64_t last;          /* of a piece: where it ends; of a run: how many frames it has */
} Numbers;

typedef struct {
    const unsigned char *bytes;
    Py_ssize_t size; /* of the bytes */
    int64_t most;    /* bytes of a frame behind its header */
    const char *looked_at;
    PyObject *held;
    Py_ssize_t index, at;
    Py_ssize_t count, runs; /* of the frames that were found, and of their runs */
    PyObject *sizes;        /* owned bytes: int32 of each frame, with room for more; NULL after an error */
    int64_t first_ns, last_ns;
} Search;

static inline Numbers
numbers_at(const char *from, Py_ssize_t index)
{
    Numbers numbers;
    memcpy(&numbers, from + index * (Py_ssize_t)sizeof(Numbers), sizeof(Numbers));
    return numbers;
}

/* Where the frame at `at` ends, or -1 if it is not whole before `stop`, which is inside of the bytes. */
static inline Py_ssize_t
end_of_frame(const unsigned char *bytes, Py_ssize_t at, Py_ssize_t stop, int64_t most)
{
    if (stop - at < HEADER_BYTES)
        return -1;
    int64_t length = load32(bytes + at + 4);
    if (length < 0 || length > most || length > stop - at - HEADER_BYTES)
        return -1;
    return at + HEADER_BYTES + (Py_ssize_t)length;
}

/* Whether a stream is in a dict; -1 with an exception. */
static int
is_held(int64_t stream, PyObject *held)
{
    if (PyDict_GET_SIZE(held) == 0)
        return 0;
    PyObject *key = PyLong_FromLongLong(stream);
    int is_there = key == NULL ? -1 : PyDict_Contains(held, key);
    Py_XDECREF(key);
    return is_there;
}

/* Room for one more size; -1 with MemoryError. */
static int
make_room(Search *search)
{
    Py_ssize_t room = PyBytes_GET_SIZE(search->sizes);
    if ((search->count + 1) * (Py_ssize_t)sizeof(int32_t) <= room)
        return 0;
    if (room > PY_SSIZE_T_MAX / 2) {
        PyErr_NoMemory();
        return -1;
    }
    return _PyBytes_Resize(&search->sizes, 2 * room);
}

/* Finds the frames of the piece from the position to `stop`; how many, or -1 with an exception. */
static int64_t
frames_of_piece(Search *search, Py_ssize_t stop)
{
    int64_t found = 0;
    Py_ssize_t before = search->at;
    for (Py_ssize_t end; (end = end_of_frame(search->bytes, search->at, stop, search->most)) >= 0; found++) {
        Py_ssize_t ahead = AHEAD * (end - before); /* pairs of frames are often as long as the one before */
        if (ahead < stop - end)
            will_read(search->bytes + end + ahead, 1);
        if (search->looked_at[search->bytes[search->at + 3]])
            break;
        if (make_room(search) < 0)
            return -1;
        int32_t size = (int32_t)(end - search->at);
        memcpy(PyBytes_AS_STRING(search->sizes) + search->count++ * (Py_ssize_t)sizeof(size), &size, sizeof(size));
        before = search->at;
        search->at = end;
    }
    return found;
}

/* Goes through the pieces, and writes a run for each that has frames to `runs`, which has room for one a piece; 0, or
   -1: an exception, or declined if none is set. */
static int
go_through(Search *search, const char *pieces, Py_ssize_t count, char *runs)
{
    for (; search->index < count; search->index++) {
        Numbers piece = numbers_at(pieces, search->index);
        if (piece.stream < 0 || piece.last < search->at || piece.last > search->size)
            return -1;
        int status = is_held(piece.stream, search->held);
        if (status != 0)
            return status < 0 ? -1 : 0;
        int64_t found = frames_of_piece(search, (Py_ssize_t)piece.last);
        if (found < 0)
            return -1;
        if (found > 0) {
            Numbers run = {piece.ts_ns, piece.stream, found};
            if (search->runs == 0 || piece.ts_ns < search->first_ns)
                search->first_ns = piece.ts_ns;
            if (search->runs == 0 || piece.ts_ns > search->last_ns)
                search->last_ns = piece.ts_ns;
            memcpy(runs + search->runs++ * (Py_ssize_t)sizeof(Numbers), &run, sizeof(run));
        }
        if (search->at < piece.last)
            return 0;
    }
    return 0;
}

static PyObject *
search_pieces(Search *search, const Py_buffer *pieces)
{
    Py_ssize_t width = (Py_ssize_t)sizeof(Numbers), count = pieces->len / width;
    Py_ssize_t most = search->index < count ? count - search->index : 0;
    PyObject *runs = PyBytes_FromStringAndSize(NULL, most * width);
    search->sizes = PyBytes_FromStringAndSize(NULL, FEW * (Py_ssize_t)sizeof(int32_t));
    if (runs == NULL || search->sizes == NULL || go_through(search, pieces->buf, count, PyBytes_AS_STRING(runs)) < 0 ||
        (search->runs < most && _PyBytes_Resize(&runs, search->runs * width) < 0) ||
        _PyBytes_Resize(&search->sizes, search->count * (Py_ssize_t)sizeof(int32_t)) < 0) {
        Py_XDECREF(runs);
        Py_XDECREF(search->sizes);
        return NULL;
    }
    return Py_BuildValue("nnLLNN", search->index, search->at, (long long)search->first_ns, (long long)search->last_ns,
                         runs, search->sizes);
}

PyObject *
whole_frames(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    Py_buffer data, pieces;
    int64_t index, at, most;
    if (!number_in(args[2], 0, PY_SSIZE_T_MAX, &index) || !number_in(args[4], 0, INT32_MAX - HEADER_BYTES, &most) ||
        !PyBytes_CheckExact(args[5]) || PyBytes_GET_SIZE(args[5]) != 256 || !PyDict_CheckExact(args[6]) ||
        hold(args[0], &data) < 0)
        return NULL;
    PyObject *made = NULL;
    if (number_in(args[3], 0, data.len, &at) && hold(args[1], &pieces) == 0) {
        Search search = {.bytes = data.buf, .size = data.len, .most = most, .looked_at = PyBytes_AS_STRING(args[5]),
                         .held = args[6], .index = (Py_ssize_t)index, .at = (Py_ssize_t)at};
        made = search_pieces(&search, &pieces);
        PyBuffer_Release(&pieces);
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

/* 0 if runs have so many frames, else -1. */
static int
check_runs(PyObject *runs, Py_ssize_t count)
{
    Py_ssize_t left = count, size = PyBytes_GET_SIZE(runs), width = (Py_ssize_t)sizeof(Numbers);
    for (Py_ssize_t i = 0; i < size / width; i++) {
        Numbers run = numbers_at(PyBytes_AS_STRING(runs), i);
        if (run.stream < 0 || run.last < 0 || run.last > left)
            return -1;
        left -= (Py_ssize_t)run.last;
    }
    return left == 0 && size % width == 0 ? 0 : -1;
}

/* Fills the columns of `all` rows, from `row` on, with the frames of runs, which have as many as there are sizes. */
static void
fill_columns(char *columns, Py_ssize_t all, Py_ssize_t row, int64_t end, PyObject *runs, const char *sizes)
{
    char *times = columns, *connections = times + 8 * all, *ends = connections + 8 * all, *ways = ends + 8 * all;
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(runs) / (Py_ssize_t)sizeof(Numbers); i++) {
        Numbers run = numbers_at(PyBytes_AS_STRING(runs), i);
        for (; run.last > 0; run.last--, row++, sizes += sizeof(int32_t)) {
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

/* --- copies ------------------------------------------------------------------------------------------------------ */

/* Copies bytes to memory that does not overlap. Many are not read soon: they go past the cache, where others are of more
   use. Few may be a small piece, whose frames are found later. */
static void
copy_bytes(char *to, const char *from, Py_ssize_t size)
{
#ifdef __SSE2__
    Py_ssize_t first = (Py_ssize_t)(-(uintptr_t)to % LINE_BYTES);
    if (size >= SMALL_BYTES) {
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

/* Copies data to a position of writable memory; 0, or -1: an exception, or declined if none is set. */
static int
copy_to(PyObject *owner, int64_t at, const Py_buffer *data)
{
    Py_buffer memory;
    if (hold_writable(owner, &memory) < 0)
        return -1;
    const char *from = data->buf, *start = memory.buf;
    int fits = data->len <= memory.len && at <= memory.len - data->len &&
               (from + data->len <= start || start + memory.len <= from);
    if (fits)
        copy_bytes((char *)memory.buf + at, from, data->len);
    PyBuffer_Release(&memory);
    return fits ? 0 : -1;
}

PyObject *
copy_into(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    Py_buffer data;
    int64_t at;
    if (!number_in(args[1], 0, PY_SSIZE_T_MAX, &at) || hold(args[2], &data) < 0)
        return NULL;
    int status = copy_to(args[0], at, &data);
    PyBuffer_Release(&data);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *
add_piece(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
    Py_buffer data;
    Numbers piece;
    int64_t at;
    PyObject *pieces = args[3];
    if (!number_in(args[1], 0, PY_SSIZE_T_MAX, &at) || !PyByteArray_CheckExact(pieces) ||
        !number_in(args[4], INT64_MIN, INT64_MAX, &piece.ts_ns) ||
        !number_in(args[5], INT64_MIN, INT64_MAX, &piece.stream) || hold(args[2], &data) < 0)
        return NULL;
    Py_ssize_t size = PyByteArray_GET_SIZE(pieces);
    int status = copy_to(args[0], at, &data);
    piece.last = status < 0 ? 0 : at + data.len; /* at most the size of the view */
    PyBuffer_Release(&data);
    if (status < 0 || PyByteArray_Resize(pieces, size + (Py_ssize_t)sizeof(piece)) < 0)
        return NULL;
    memcpy(PyByteArray_AS_STRING(pieces) + size, &piece, sizeof(piece));
    return PyLong_FromLongLong(piece.last);
}

/* --- add(writer, ts_ns, connection, direction, data) -------------------------------------------------------------- */

#define STEP_BYTES (32 * 1024) /* so many are copied, and stay in the processor's cache while frames are looked for */

/* Classes of a writer's objects, and their slots, in the order in which Python names them. */
enum { WRITER, RECORDS_TYPE, HALF, NUMBERS };
enum {
    DUE_NS, HELD, LOOKED_AT, MAX_BODY, MEMORY_BYTES, PART_START, PART_STOP, RECORDS, TAKEN_BYTES, USED, VIEW, WAITING,
    WAITS, BLOCK_BYTES, FLUSH_AFTER_NS,
    FIRST_NS, FRAMES_START, LAST_NS, OVERHEAD, RUNS, RECORDED_BYTES, SIZES, TIMES,
    HALF_DATA, NEED
};
#define MOST_OVERHEAD 4 /* _MOST_OVERHEAD of segstore.wire.trace.writer */
#define RUN_BYTES 400   /* _RUN_BYTES of it */

/* Bytes of one direction, what the writer has, and what is found. All but the writer is owned. */
typedef struct {
    Py_buffer data;
    PyObject *writer, *records, *held, *runs, *sizes, *half, *key;
    int64_t ts_ns, stream;
    int64_t due_ns, flush_after_ns, max_body, memory_bytes, part_start, part_stop, size, used, block_bytes;
    int64_t first_ns, last_ns, overhead, recorded, frames_start;
    Py_ssize_t of_half, first; /* bytes of the incomplete frame that is continued, and where it ends in the data */
    Search search;             /* of the frames behind it */
    int64_t need;              /* bytes of the frame that is incomplete at the end; 0 if there is none */
} Recorded;

/* Finds what the writer has, and begins a part of its memory if there is none; 0 if something precedes the frames. */
static int
find_writer(const Shortcut *self, Recorded *to)
{
    const Py_ssize_t *slots = self->slots;
    PyObject *writer = to->writer, *waiting = slot(writer, slots[WAITING]), *records = slot(writer, slots[RECORDS]);
    if (waiting == NULL || !PyByteArray_CheckExact(waiting) || PyByteArray_GET_SIZE(waiting) > 0 || records == NULL ||
        !Py_IS_TYPE(records, self->types[RECORDS_TYPE]))
        return 0;
    to->records = Py_NewRef(records);
    to->held = Py_XNewRef(slot(writer, slots[HELD]));
    to->runs = Py_XNewRef(slot(records, slots[RUNS]));
    to->sizes = Py_XNewRef(slot(records, slots[SIZES]));
    if (to->held == NULL || !PyDict_CheckExact(to->held) || to->runs == NULL || !PyByteArray_CheckExact(to->runs) ||
        to->sizes == NULL || !PyByteArray_CheckExact(to->sizes))
        return 0;
    const struct {
        PyObject *owner;
        int slot;
        int64_t *number;
    } numbers[] = {
        {writer, DUE_NS, &to->due_ns}, {writer, MAX_BODY, &to->max_body}, {writer, MEMORY_BYTES, &to->memory_bytes},
        {writer, PART_START, &to->part_start}, {writer, PART_STOP, &to->part_stop}, {writer, TAKEN_BYTES, &to->size},
        {writer, USED, &to->used}, {writer, FLUSH_AFTER_NS, &to->flush_after_ns},
        {writer, BLOCK_BYTES, &to->block_bytes}, {records, OVERHEAD, &to->overhead},
        {records, RECORDED_BYTES, &to->recorded}, {records, FRAMES_START, &to->frames_start},
        {records, FIRST_NS, &to->first_ns}, {records, LAST_NS, &to->last_ns},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        int of = numbers[i].slot, is_time = of == DUE_NS || of == FLUSH_AFTER_NS || of == FIRST_NS || of == LAST_NS;
        if (!number_in(slot(numbers[i].owner, slots[of]), is_time ? INT64_MIN : 0, is_time ? INT64_MAX : INT64_MAX / 8,
                       numbers[i].number))
            return 0;
    }
    if (to->max_body > INT32_MAX - HEADER_BYTES || to->flush_after_ns < 0 || to->ts_ns > INT64_MAX - to->flush_after_ns)
        return 0;
    if (slot(writer, slots[WAITS]) == Py_False)
        to->due_ns = to->ts_ns + to->flush_after_ns;
    else if (slot(writer, slots[WAITS]) != Py_True)
        return 0;
    if (to->part_start < to->part_stop)
        return to->part_stop == to->used && PyByteArray_GET_SIZE(to->runs) > 0;
    PyObject *times = slot(records, slots[TIMES]);
    if (PyByteArray_GET_SIZE(to->runs) > 0 || times == NULL || !Py_IS_TYPE(times, self->types[NUMBERS]) ||
        Py_SIZE(times) > 0)
        return 0;
    to->part_start = to->used;
    to->overhead += RUN_BYTES;
    to->frames_start = to->recorded;
    return 1;
}

/* Whether the bytes begin with a frame, or complete one. */
static int
find_start(const Shortcut *self, Recorded *to)
{
    PyObject *half = PyDict_GetItemWithError(to->held, to->key), *frame;
    to->half = Py_XNewRef(half);
    if (half == NULL)
        return !PyErr_Occurred();
    int64_t need;
    if (!Py_IS_TYPE(half, self->types[HALF]) || !number_in(slot(half, self->slots[NEED]), 0, INT32_MAX, &need) ||
        (frame = slot(half, self->slots[HALF_DATA])) == NULL || !PyByteArray_CheckExact(frame) ||
        (to->of_half = PyByteArray_GET_SIZE(frame)) < HEADER_BYTES || need <= to->of_half ||
        need - to->of_half > to->data.len || need - HEADER_BYTES > to->max_body ||
        load32((unsigned char *)PyByteArray_AS_STRING(frame) + 4) != need - HEADER_BYTES ||
        to->search.looked_at[(unsigned char)PyByteArray_AS_STRING(frame)[3]])
        return 0;
    to->first = (Py_ssize_t)(need - to->of_half);
    return 1;
}

/* Copies the bytes to memory, and finds whole frames in them; 0, or -1 with an exception. The bytes of each step are in
   the processor's cache when frames are looked for. */
static int
copy_and_find(Recorded *to, char *memory)
{
    const char *from = to->data.buf;
    Search *search = &to->search;
    search->bytes = to->data.buf;
    search->at = to->first;
    search->most = to->max_body;
    search->sizes = PyBytes_FromStringAndSize(NULL, FEW * (Py_ssize_t)sizeof(int32_t));
    if (search->sizes == NULL)
        return -1;
    for (Py_ssize_t at = 0, stop; at < to->data.len; at = stop) {
        stop = to->data.len - at > STEP_BYTES ? at + STEP_BYTES : to->data.len;
        copy_bytes(memory + at, from + at, stop - at);
        if (search->at < stop && frames_of_piece(search, stop) < 0)
            return -1;
    }
    return 0;
}

/* Takes the bytes to the writer's memory, behind the frame that they complete; 0, or -1: an exception, or declined if
   none is set. */
static int
take_bytes(const Shortcut *self, Recorded *to)
{
    Py_buffer memory;
    PyObject *view = slot(to->writer, self->slots[VIEW]);
    if (view == NULL || hold_writable(view, &memory) < 0)
        return -1;
    const char *from = to->data.buf, *start = memory.buf;
    int status = -1;
    if (to->memory_bytes <= memory.len && to->of_half + to->data.len <= to->memory_bytes - to->used &&
        (from + to->data.len <= start || start + memory.len <= from)) {
        char *at = (char *)memory.buf + to->used;
        if (to->half != NULL)
            memcpy(at, PyByteArray_AS_STRING(slot(to->half, self->slots[HALF_DATA])), to->of_half);
        status = copy_and_find(to, at + to->of_half);
    }
    PyBuffer_Release(&memory);
    return status;
}

/* Whether all that is behind the frames that were found is the beginning of one, whose size is set. */
static int
find_need(Recorded *to)
{
    Py_ssize_t at = to->search.at, rest = to->data.len - at;
    int64_t length = rest < HEADER_BYTES ? 0 : load32(to->search.bytes + at + 4);
    to->need = rest == 0 ? 0 : HEADER_BYTES + length;
    return at > 0 && length >= 0 && length <= to->max_body && (rest == 0 || rest < to->need);
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
    Numbers run = {to->ts_ns, to->stream, count};
    if (count == 0)
        return 0;
    return add_bytes(to->runs, &run, sizeof(run)) < 0 ||
                   add_bytes(to->sizes, sizes, (Py_ssize_t)count * (Py_ssize_t)sizeof(int32_t)) < 0
               ? -1
               : 0;
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
keep_tail(const Shortcut *self, const Recorded *to, PyObject *tail)
{
    PyObject *rest = PyByteArray_FromStringAndSize((char *)to->data.buf + to->search.at, to->data.len - to->search.at);
    PyObject *need = PyLong_FromLongLong(to->need);
    if (rest == NULL || need == NULL) {
        Py_XDECREF(rest);
        Py_XDECREF(need);
        return -1;
    }
    set_slot(tail, self->slots[HALF_DATA], rest);
    set_slot(tail, self->slots[NEED], need);
    if (to->half == NULL)
        return to->need == 0 ? 0 : PyDict_SetItem(to->held, to->key, tail);
    int status = PyDict_DelItem(to->held, to->key); /* the newest is the last, as in Python */
    if (status == 0 && to->need > 0 && (status = PyDict_SetItem(to->held, to->key, tail)) < 0)
        put_back(to->held, to->key, to->half);
    return status;
}

/* Sets what has changed of the writer and its records; 0, or -1 with an exception and nothing changed. */
static int
change(const Shortcut *self, const Recorded *to, PyObject *tail)
{
    const struct {
        int slot;
        int64_t number;
    } after[] = {
        {DUE_NS, to->due_ns}, {TAKEN_BYTES, to->size}, {USED, to->used}, {PART_START, to->part_start},
        {PART_STOP, to->used}, {OVERHEAD, to->overhead}, {RECORDED_BYTES, to->recorded},
        {FRAMES_START, to->frames_start}, {FIRST_NS, to->first_ns}, {LAST_NS, to->last_ns},
    };
    enum { COUNT = sizeof(after) / sizeof(*after) };
    PyObject *numbers[COUNT];
    int status = 0;
    for (int i = 0; i < COUNT; i++)
        status = (numbers[i] = PyLong_FromLongLong(after[i].number)) == NULL ? -1 : status;
    if (status == 0)
        status = keep_tail(self, to, tail);
    for (int i = 0; i < COUNT; i++)
        if (status == 0)
            set_slot(after[i].slot < FIRST_NS ? to->writer : to->records, self->slots[after[i].slot], numbers[i]);
        else
            Py_XDECREF(numbers[i]);
    if (status == 0)
        set_slot(to->writer, self->slots[WAITS], Py_NewRef(Py_True));
    return status;
}

/* Records bytes: 0, or -1: an exception, or declined if none is set, with nothing changed. */
static int
record(const Shortcut *self, Recorded *to, PyObject *tail)
{
    Py_ssize_t runs = PyByteArray_GET_SIZE(to->runs), sizes = PyByteArray_GET_SIZE(to->sizes);
    int status = find_start(self, to) ? take_bytes(self, to) : -1;
    if (status == 0 && !find_need(to))
        status = -1;
    int32_t size = (int32_t)(to->of_half + to->first);
    if (status == 0)
        status = add_run(to, to->half != NULL, &size);
    if (status == 0)
        status = add_run(to, to->search.count, PyBytes_AS_STRING(to->search.sizes));
    Py_ssize_t bytes = to->of_half + to->search.at;
    to->size += to->data.len;
    to->used += bytes;
    to->recorded += bytes;
    to->overhead += PyByteArray_GET_SIZE(to->runs) - runs + PyByteArray_GET_SIZE(to->sizes) - sizes;
    to->first_ns = to->ts_ns < to->first_ns ? to->ts_ns : to->first_ns;
    to->last_ns = to->ts_ns > to->last_ns ? to->ts_ns : to->last_ns;
    if (status == 0)
        status = change(self, to, tail);
    if (status < 0) {
        cut(to->runs, runs);
        cut(to->sizes, sizes);
    }
    return status;
}

/* The object of an incomplete frame is made before the look: the garbage collector knows it. */
PyObject *
record_bytes(const Shortcut *self, PyObject *const *args)
{
    Recorded to = {.writer = args[0]};
    int64_t connection, direction;
    if (!PyObject_TypeCheck(to.writer, self->types[WRITER]) || !number_in(args[1], INT64_MIN, INT64_MAX, &to.ts_ns) ||
        !number_in(args[2], 0, INT64_MAX >> 2, &connection) || !number_in(args[3], 0, 1, &direction) ||
        hold(args[4], &to.data) < 0)
        return NULL;
    PyObject *tail = NULL, *looked_at = Py_XNewRef(slot(to.writer, self->slots[LOOKED_AT])), *due = NULL;
    to.stream = connection << 1 | direction;
    if (to.data.len >= SMALL_BYTES && (tail = self->types[HALF]->tp_alloc(self->types[HALF], 0)) != NULL &&
        (to.key = PyLong_FromLongLong(to.stream)) != NULL &&
        looked_at != NULL && PyBytes_CheckExact(looked_at) && PyBytes_GET_SIZE(looked_at) == 256 &&
        find_writer(self, &to)) {
        to.search.looked_at = PyBytes_AS_STRING(looked_at);
        if (record(self, &to, tail) == 0)
            due = PyBool_FromLong(to.ts_ns >= to.due_ns || to.size >= to.block_bytes ||
                                  to.recorded >= to.block_bytes || to.overhead >= MOST_OVERHEAD * to.block_bytes);
    }
    PyBuffer_Release(&to.data);
    PyObject *owned[] = {to.search.sizes, to.key, to.records, to.held, to.runs, to.sizes, to.half, looked_at, tail};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++)
        Py_XDECREF(owned[i]);
    return due;
}
