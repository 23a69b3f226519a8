/* A group of a journal that is on disk at return; see segstore.server.durable.files. */

#include "speed.h"

#include <errno.h>
#include <limits.h>

#ifdef __linux__
#include <unistd.h>

#define CRC_BYTES 4
#define MOST_BYTES (PY_SSIZE_T_MAX / 4) /* of each part */

static uint32_t crc_tables[8][256];

/* Of the CRC-32 of zlib, 8 bytes at a time. Called once, before anything else of this file. */
void
make_crc_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_tables[table - 1][byte];
            crc_tables[table][byte] = crc >> 8 ^ crc_tables[0][crc & 255];
        }
}

static inline uint32_t
little32(const unsigned char *from)
{
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static uint32_t
crc32_of(const unsigned char *from, Py_ssize_t size, uint32_t crc)
{
    crc = ~crc;
    for (; size >= 8; from += 8, size -= 8) {
        uint32_t a = crc ^ little32(from), b = little32(from + 4);
        crc = crc_tables[7][a & 255] ^ crc_tables[6][a >> 8 & 255] ^ crc_tables[5][a >> 16 & 255] ^
              crc_tables[4][a >> 24] ^ crc_tables[3][b & 255] ^ crc_tables[2][b >> 8 & 255] ^
              crc_tables[1][b >> 16 & 255] ^ crc_tables[0][b >> 24];
    }
    for (; size > 0; size--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *from++) & 255];
    return ~crc;
}

/* 0, or what went wrong. */
static int
write_all(int descriptor, const char *from, Py_ssize_t left, int64_t at)
{
    while (left > 0) {
        ssize_t done = pwrite(descriptor, from, (size_t)left, (off_t)at);
        if (done < 0 && errno != EINTR)
            return errno;
        if (done > 0) {
            from += done;
            left -= done;
            at += done;
        }
    }
    return 0;
}

typedef struct {
    int descriptor, noted;
    int64_t at;
    const char *head, *payload, *note;
    Py_ssize_t head_size, payload_size, note_size;
    Py_ssize_t size; /* of all that is written */
} Group;

/* 0, or what went wrong. Works without the GIL: getting it back means waiting for the loop. */
static int
write_whole(const Group *group)
{
    char *whole = malloc((size_t)group->size), *to = whole;
    if (whole == NULL)
        return ENOMEM;
    memcpy(to, group->head, group->head_size);
    to += group->head_size + CRC_BYTES;
    memcpy(to, group->payload, group->payload_size);
    to += group->payload_size;
    memset(to, 0, group->size - (to - whole));
    uint32_t crc = crc32_of((const unsigned char *)group->head, group->head_size, 0);
    crc = crc32_of((const unsigned char *)group->payload, group->payload_size, crc);
    for (int i = 0; i < CRC_BYTES; i++)
        whole[group->head_size + i] = (char)(crc >> (24 - 8 * i));
    int problem = write_all(group->descriptor, whole, group->size, group->at);
    free(whole);
    while (problem == 0 && fdatasync(group->descriptor) < 0)
        if (errno != EINTR)
            problem = errno;
    return problem != 0 ? problem : write_all(group->noted, group->note, group->note_size, 0);
}

static int
is_part(PyObject *value)
{
    return PyBytes_CheckExact(value) && PyBytes_GET_SIZE(value) <= MOST_BYTES;
}

PyObject *
write_group(PyObject *const *args)
{
    int64_t descriptor, at, page, noted;
    if (!is_part(args[3]) || !is_part(args[4]) || !is_part(args[6]))
        return NULL;
    if (!number_in(args[0], 0, INT_MAX, &descriptor) || !number_in(args[1], 0, INT64_MAX / 2, &at) ||
        !number_in(args[2], 1, 1 << 20, &page) || !number_in(args[5], INT_MIN, INT_MAX, &noted))
        return NULL;
    Group group = {
        .descriptor = (int)descriptor, .noted = (int)noted, .at = at,
        .head = PyBytes_AS_STRING(args[3]), .head_size = PyBytes_GET_SIZE(args[3]),
        .payload = PyBytes_AS_STRING(args[4]), .payload_size = PyBytes_GET_SIZE(args[4]),
        .note = PyBytes_AS_STRING(args[6]), .note_size = PyBytes_GET_SIZE(args[6]),
    };
    Py_ssize_t filled = group.head_size + CRC_BYTES + group.payload_size;
    group.size = (filled + (Py_ssize_t)page - 1) / (Py_ssize_t)page * (Py_ssize_t)page;
    int problem;
    Py_BEGIN_ALLOW_THREADS
    problem = write_whole(&group);
    Py_END_ALLOW_THREADS
    if (problem == 0)
        return PyLong_FromSsize_t(group.size);
    if (problem == ENOMEM)
        return PyErr_NoMemory();
    errno = problem;
    return PyErr_SetFromErrno(PyExc_OSError);
}

#else

void
make_crc_tables(void)
{
}

PyObject *
write_group(PyObject *const *Py_UNUSED(args))
{
    return NULL;
}

#endif
