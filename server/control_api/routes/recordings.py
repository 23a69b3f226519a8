"""Routes that start, stop and download recordings, and download all of the traffic that is kept, as traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.models import NewRecording, RecordingInfo, RecordingList
from segstore.server.control_api.problems import not_kept
from segstore.server.recordings import KeptRecording, Recordings
from segstore.server.traffic import Traffic
from segstore.wire.trace import FixtureHeader, Record, header_line, to_line

_LINES_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 64 * 1024
_Form = Annotated[Literal["wtrace", "jsonl"], Query(description="A capture, or a fixture with one record per line.")]
_Name = Annotated[str, Path(max_length=100, description="The name of a recording.")]
_TRACE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The trace",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}


def router(controlled: Controlled) -> APIRouter:
    made, one_at_a_time = APIRouter(prefix="/v1", tags=["requests"]), asyncio.Lock()

    def traffic() -> Traffic:
        if controlled.traffic is None:
            raise not_kept()
        return controlled.traffic

    def recordings() -> Recordings:
        if controlled.recordings is None:
            raise not_kept()
        return controlled.recordings

    @made.get("/trace", summary="The latest traffic as a trace", response_class=Response, responses=_TRACE)
    async def get_trace(form: _Form = "wtrace") -> Response:
        kept = traffic()
        last = kept.flush()
        return _trace(kept, form, kept.trace(), (record for _, record in kept.records(last=last)), one_at_a_time)

    @made.post("/recordings", summary="Start a recording", status_code=201)
    async def start_recording(given: NewRecording | None = None) -> RecordingInfo:
        wanted = given or NewRecording()
        return _info(recordings().start(wanted.name, wanted.max_bytes))

    @made.get("/recordings", summary="Recordings")
    async def list_recordings() -> RecordingList:
        return RecordingList(recordings=[_info(each) for each in recordings()])

    @made.get("/recordings/{name}", summary="One recording")
    async def get_recording(name: _Name) -> RecordingInfo:
        return _info(recordings().get(name))

    @made.post("/recordings/{name}/stop", summary="Stop a recording; refused if it has ended at its limit")
    async def stop_recording(name: _Name) -> RecordingInfo:
        return _info(recordings().stop(name))

    @made.get(
        "/recordings/{name}/trace",
        summary="What a recording has so far, as a trace",
        response_class=Response,
        responses=_TRACE,
    )
    async def download_recording(name: _Name, form: _Form = "wtrace") -> Response:
        found = recordings().get(name)
        return _trace(traffic(), form, found.trace(), found.all_records(), one_at_a_time)

    @made.delete("/recordings/{name}", summary="Delete a recording", status_code=204)
    async def delete_recording(name: _Name) -> Response:
        recordings().delete(name)
        return Response(status_code=204)

    return made


def _info(recording: KeptRecording) -> RecordingInfo:
    return RecordingInfo(
        name=recording.name,
        running=recording.stopped_ms is None,
        records=recording.records,
        size=recording.size,
        max_bytes=recording.max_bytes,
        started_ms=recording.started_ms,
        stopped_ms=recording.stopped_ms,
        problem=recording.problem,
    )


def _trace(
    traffic: Traffic, form: str, pieces: Iterable[bytes], records: Iterable[Record], one_at_a_time: asyncio.Lock
) -> Response:
    """Answers with a trace: the pieces of the capture, or the records as lines."""
    name = {"content-disposition": f'attachment; filename="segstore.{form}"'}
    if form == "jsonl":
        return StreamingResponse(
            _lines(traffic, records, one_at_a_time), media_type="application/x-ndjson", headers=name
        )
    return StreamingResponse(sent(pieces), media_type="application/octet-stream", headers=name)


async def sent(pieces: Iterable[bytes]) -> AsyncIterator[memoryview]:
    """The body of a long answer."""
    for each in pieces:
        for part in _parts(each):
            yield part


async def _lines(traffic: Traffic, records: Iterable[Record], one_at_a_time: asyncio.Lock) -> AsyncIterator[memoryview]:
    """The lines of a fixture, which are made as they are sent. one_at_a_time: bounds the work of a loop iteration."""
    start_ns, following = traffic.started_ns, iter(records)
    yield memoryview(f"{header_line(FixtureHeader(traffic.metadata, start_ns))}\n".encode())
    while True:
        lines = bytearray()
        async with one_at_a_time:
            for record in islice(following, _LINES_AT_ONCE):
                lines += f"{to_line(record, start_ns)}\n".encode()
                if len(lines) >= _AT_ONCE_BYTES:
                    break
            await asyncio.sleep(0)
        if not lines:
            return
        for part in _parts(bytes(lines)):
            yield part


def _parts(data: bytes) -> Iterator[memoryview]:
    """Yields at most `_AT_ONCE_BYTES` at a time, so that the listener sees the progress of a slow reader."""
    view = memoryview(data)
    for start in range(0, len(view), _AT_ONCE_BYTES):
        yield view[start : start + _AT_ONCE_BYTES]
