/* A write that is on disk at return; see segstore.server.durable.files. */

#include "speed.h"

#include <errno.h>
#include <limits.h>

#ifdef __linux__
#include <unistd.h>

/* 0, or what went wrong. Works without the GIL. */
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
    while (fdatasync(descriptor) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}
#endif

PyObject *
write_and_sync(const Shortcut *Py_UNUSED(self), PyObject *const *args)
{
#ifdef __linux__
    Py_buffer data;
    int64_t descriptor, at;
    int problem;
    if (!number_in(args[0], 0, INT_MAX, &descriptor) || hold(args[1], &data) < 0)
        return NULL;
    if (!number_in(args[2], 0, INT64_MAX - data.len, &at)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    problem = write_all((int)descriptor, data.buf, data.len, at);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    if (problem == 0)
        Py_RETURN_NONE;
    errno = problem;
    return PyErr_SetFromErrno(PyExc_OSError);
#else
    (void)args;
    return NULL;
#endif
}
