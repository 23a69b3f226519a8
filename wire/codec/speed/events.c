/* Events of a client, one by one: the queue behind others, what waits for them, and those of a read. Equals of functions
   in segstore.client. */

#include "speed.h"

/* --- add_behind(routes, key, event, new_future, budget) ------------------------------------------------------------ */

#define SHORT 16384     /* length of a list of items */
#define MANY_ITEMS 1024 /* at each multiple of this length, the caller decides */
#define LEAST_COST 64   /* of an event in a budget */

PyObject *
newest_of(PyObject *queue, Py_ssize_t size, int64_t *added, const Py_ssize_t of[3])
{
    PyObject *newest = slot(queue, of[0]);
    int64_t overhead;
    if (newest == NULL || !PyList_CheckExact(newest) || PyList_GET_SIZE(newest) >= SHORT ||
        !number_in(slot(queue, of[1]), 0, INT64_MAX / 2, added) ||
        !number_in(slot(queue, of[2]), 0, INT32_MAX, &overhead))
        return NULL;
    *added += overhead + size;
    return newest;
}

/* Queues the item of an event: 1 if it is queued, 0 if the answer is None, -1 if it is declined or an exception is set. */
static int
queue_event(const Shortcut *self, PyObject *queue, PyObject *position, PyObject *event, PyObject *done, PyObject *budget)
{
    int64_t added, full_at, left, largest;
    Py_ssize_t size = PyBytes_GET_SIZE(event), cost = size < LEAST_COST ? LEAST_COST : size;
    PyObject *newest = newest_of(queue, size, &added, self->slots);
    if (newest == NULL || !number_in(slot(queue, self->slots[3]), INT64_MIN, INT64_MAX, &full_at) ||
        !number_in(slot(budget, self->slots[4]), INT64_MIN / 2, INT64_MAX, &left) ||
        !number_in(slot(budget, self->slots[5]), INT64_MIN, INT64_MAX, &largest))
        return -1;
    if (PyList_GET_SIZE(newest) % MANY_ITEMS == 0 || added >= full_at || cost >= left || size > largest)
        return 0;
    PyObject *total = PyLong_FromLongLong(added), *rest = PyLong_FromLongLong(left - cost), *one = PyLong_FromLong(1);
    PyObject *item = NULL;
    if (total != NULL && rest != NULL && one != NULL)
        item = PyObject_Vectorcall((PyObject *)self->types[1], (PyObject *[]){event, one, position, done}, 4, NULL);
    int status = item == NULL || PyList_Append(newest, item) < 0 ? -1 : 1;
    Py_XDECREF(one);
    Py_XDECREF(item);
    if (status < 0) {
        Py_XDECREF(total);
        Py_XDECREF(rest);
        return -1;
    }
    set_slot(queue, self->slots[1], total);
    set_slot(budget, self->slots[4], rest);
    return 1;
}

/* The future is made before the look at the queue, because a finalizer may run then. The item's class, which the
   garbage collector does not track, runs none. */
PyObject *
add_behind(const Shortcut *self, PyObject *const *args)
{
    PyObject *routes = args[0], *key = args[1], *event = args[2], *budget = args[4];
    if (!PyDict_CheckExact(routes) || !(key == Py_None || PyUnicode_CheckExact(key)) || !PyBytes_CheckExact(event) ||
        !Py_IS_TYPE(budget, self->types[2]))
        return NULL;
    PyObject *route = PyDict_GetItemWithError(routes, key);
    if (route == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (!PyTuple_CheckExact(route) || PyTuple_GET_SIZE(route) != 3 ||
        !Py_IS_TYPE(PyTuple_GET_ITEM(route, 0), self->types[0]))
        return NULL;
    Py_INCREF(route);
    PyObject *done = PyObject_CallNoArgs(args[3]);
    int status = -1;
    if (done != NULL)
        status = queue_event(self, PyTuple_GET_ITEM(route, 0), PyTuple_GET_ITEM(route, 1), event, done, budget);
    Py_DECREF(route);
    if (status <= 0)
        Py_CLEAR(done);
    return status == 0 ? Py_NewRef(Py_None) : done;
}

/* --- resolve_stored(items, failed) -------------------------------------------------------------------------------- */

int
complete(const Shortcut *self, PyObject *done, PyTypeObject *future, PyTypeObject *invalid, PyObject **problem)
{
    int is_future = PyObject_TypeCheck(done, future), is_plain = Py_IS_TYPE(done, future);
    if (is_future && !is_plain) {
        PyObject *answer = PyObject_CallMethod(done, "done", NULL);
        int is_done = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (is_done != 0)
            return is_done;
    }
    PyObject *result =
        is_future ? PyObject_CallMethodOneArg(done, self->method, Py_None) : PyObject_CallOneArg(done, Py_None);
    if (result == NULL && !is_future)
        return (*problem = exception_of_call()) == NULL ? -1 : 0;
    if (result == NULL && is_plain && PyErr_ExceptionMatches((PyObject *)invalid))
        PyErr_Clear(); /* it was done: its waiter was cancelled */
    Py_XDECREF(result);
    return PyErr_Occurred() ? -1 : 1;
}

/* What is called may change the list and its items: each is looked at when it is its turn. */
PyObject *
resolve_stored(const Shortcut *self, PyObject *const *args)
{
    PyObject *items = args[0];
    if (!PyList_CheckExact(items))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i), *problem, *result;
        PyObject *done = Py_IS_TYPE(item, self->types[0]) ? Py_XNewRef(slot(item, self->slots[0])) : NULL;
        if (done == NULL) { /* it is Python's */
            PyObject *one = PyList_GetSlice(items, i, i + 1);
            result = one == NULL ? NULL : PyObject_CallFunctionObjArgs(self->behind, one, args[1], NULL);
            Py_XDECREF(one);
            Py_XDECREF(result);
            if (result == NULL)
                return NULL;
            continue;
        }
        int status = complete(self, done, self->types[1], self->types[2], &problem);
        Py_DECREF(done);
        if (status == 0) {
            result = PyObject_CallOneArg(args[1], problem);
            Py_DECREF(problem);
            Py_XDECREF(result);
            status = result == NULL ? -1 : 1;
        }
        if (status < 0)
            return NULL;
    }
    return Py_NewRef(Py_None);
}

/* --- split_events(data, start, limit, base, make, where, out) ----------------------------------------------------- */

/* Events that are whole: what all begin with, an int32 length, as many bytes. Returns where they end, or -1 with an
   exception. */
static Py_ssize_t
split(const Shortcut *self, PyObject *const *args, const Py_buffer *data, Py_ssize_t at, int64_t limit, int64_t base)
{
    const unsigned char *bytes = data->buf;
    const char *head = PyBytes_AS_STRING(self->head);
    while (data->len - at >= HEADER_BYTES && memcmp(bytes + at, head, 4) == 0) {
        Py_ssize_t length = load32(bytes + at + 4);
        if (length < 0 || length > limit || length > data->len - at - HEADER_BYTES)
            break;
        PyObject *event = PyBytes_FromStringAndSize((char *)bytes + at + HEADER_BYTES, length);
        PyObject *offset = event == NULL ? NULL : PyLong_FromLongLong(base + at);
        PyObject *made = NULL;
        if (offset != NULL)
            made = PyObject_Vectorcall(args[4], (PyObject *[]){event, offset, args[5]}, 3, NULL);
        int status = made == NULL ? -1 : PyList_Append(args[6], made);
        Py_XDECREF(event);
        Py_XDECREF(offset);
        Py_XDECREF(made);
        if (status < 0)
            return -1;
        at += HEADER_BYTES + length;
    }
    return at;
}

PyObject *
split_events(const Shortcut *self, PyObject *const *args)
{
    int64_t start, limit, base;
    Py_buffer data;
    if (!PyList_CheckExact(args[6]) || hold(args[0], &data) < 0)
        return NULL;
    PyObject *end = NULL;
    if (number_in(args[1], 0, data.len, &start) && number_in(args[2], 0, INT32_MAX, &limit) &&
        number_in(args[3], 0, INT64_MAX - data.len, &base)) {
        Py_ssize_t at = split(self, args, &data, (Py_ssize_t)start, limit, base);
        end = at < 0 ? NULL : PyLong_FromSsize_t(at);
    }
    PyBuffer_Release(&data);
    return end;
}
