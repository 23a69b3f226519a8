# Types of transport.py for Cython. Without it the module runs as Python.

from segstore.client.connection.outbox cimport Outbox


cdef class Flow:
    cdef public object appender, connection, endpoint, flow_id, handler, on_ack, on_reply, reading_at
    cdef public bint asked, closed
    cdef public long long bytes_in_flight
    cdef public object _on_close, _sequence
    cdef public Outbox _outbox

    cpdef object ask_turn(self)
    cpdef object acknowledged(self, long long size)
    cpdef object end(self)
    cdef object _check(self)
