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
whole_frames(PyObject *const *args)
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
frames_into(PyObject *const *args)
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
copy_into(PyObject *const *args)
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
add_piece(PyObject *const *args)
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
