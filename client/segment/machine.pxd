# Types of machine.py for Cython. Without it the module runs as Python.

cimport cython

from segstore.client.connection.in_flight cimport InFlight as Events, InFlightAppend as Append
from segstore.client.connection.transport cimport Flow as AppendFlow


cdef class WriterMachine:
    cdef object __weakref__
    cdef public object _answer, _attempts, _carry, _carrying, _changed, _deferred_end, _error, _flow, _flow_id, _idle_since_s
    cdef public object _locations, _loop, _on_over, _pool, _setting_up, _sizing, _timer, _token
    cdef public object endpoint, request_id, segment, state, writer_bytes, writer_id
    cdef public Events _events
    cdef public bint _resends, _trying, frame_events
    cdef public long long _failed_from, _flushed_at, _largest, _settled, set_ups

    @cython.locals(queue=Events, flow=AppendFlow)
    cpdef bint append(self, object data, object done, long long events=*, object tag=*, bint now=*)
    @cython.locals(append=Append, events=Events)
    cpdef list take_turn(self, double now_s, long long most_bytes)
    cpdef object _stored(self, list waiters)
    cdef object _await_ack(self, double now_s)
    @cython.locals(events=Events, flow=AppendFlow)
    cpdef object on_ack(self, bytes writer, long long number, long long previous, object request_id, long long length)
