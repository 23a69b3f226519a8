# Types of outbox.py for Cython. Without it the module runs as Python.

cimport cython

from segstore.client.connection.in_flight cimport InFlightAppend


cdef class Outbox:
    cdef public object _block_timer, _counters, _encoder, _loop, _timers, _transport, _writable
    cdef public bint _blocks
    cdef public dict _sizings
    cdef public list _out
    cdef public long long _largest, _most_bytes
    cdef public bint closed, turn_due
    cdef public list turns
    cdef public long long bytes_in_flight
    cdef public object polling

    cpdef object schedule(self)
    cpdef object write(self)
    cdef object _run_turns(self)
    @cython.locals(size=cython.longlong, last=cython.longlong, count=cython.longlong)
    cdef object _add(self, object flow, object appender, InFlightAppend append)
