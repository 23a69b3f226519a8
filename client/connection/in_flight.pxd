# Types of in_flight.py for Cython. Without it the module runs as Python.

cimport cython


cdef class InFlightAppend:
    cdef public list data, tags, done
    cdef public long long events_each, size, behind_at, first, last
    cdef public double sent_s

    cdef tuple release(self, long long count, long long overhead)


cdef class InFlight:
    cdef public object queued, sent
    cdef public InFlightAppend newest
    cdef public long long full_at, last_stored, overhead, segment_length, settled
    cdef long long _before_newest, _charged, _last_taken, _most_bytes, _most_events, _most_held, _sent_before

    @cython.locals(append=InFlightAppend, size=cython.longlong)
    cpdef bint add(self, object data, object done, long long events=*, object tag=*)
    @cython.locals(append=InFlightAppend, room=cython.longlong)
    cpdef long long charge(self)
    @cython.locals(append=InFlightAppend)
    cpdef InFlightAppend take(self, double now_s=*)
    @cython.locals(append=InFlightAppend)
    cdef InFlightAppend _next(self)
    @cython.locals(append=InFlightAppend)
    cpdef tuple acknowledged(self, long long number, long long previous)
    @cython.locals(append=InFlightAppend, size=cython.longlong, count=cython.longlong)
    cdef tuple _release(self, long long number)


@cython.locals(append=InFlightAppend, done=list, size=cython.longlong)
cpdef object add_behind(InFlight queue, bytes event, object tag, object new_future)
cpdef object notify_stored(list waiters, object failed)
