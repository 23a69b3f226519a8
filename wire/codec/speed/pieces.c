/* Finds whole frames in recorded bytes, and makes columns of their records; see segstore.wire.trace.framing. */

#include "speed.h"

#define AHEAD 64
#define FEW 256
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
#ifdef __GNUC__
        if (ahead < stop - end)
            __builtin_prefetch(bytes + end + ahead); /* pairs of frames are often as long as the one before */
#endif
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
