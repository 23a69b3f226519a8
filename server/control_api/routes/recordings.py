"""Routes that start, stop and download recordings, and download all of the traffic that is kept, as traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from segstore.server.control_api.controlled import Here
from segstore.server.control_api.models import NewRecording, RecordingInfo, RecordingList
from segstore.server.control_api.problems import required
from segstore.server.recordings import KeptRecording
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


router = APIRouter(prefix="/v1", tags=["requests"])


@router.get("/trace", summary="The latest traffic as a trace", response_class=Response, responses=_TRACE)
async def get_trace(controlled: Here, form: _Form = "wtrace") -> Response:
    traffic = required(controlled.traffic)
    last = traffic.flush()
    return _trace(traffic, form, traffic.trace(), (record for _, _, record in traffic.records(last=last)))


@router.post("/recordings", summary="Start a recording", status_code=201)
async def start_recording(controlled: Here, given: NewRecording | None = None) -> RecordingInfo:
    settings = given or NewRecording()
    return _info(required(controlled.recordings).start(settings.name, settings.max_bytes))


@router.get("/recordings", summary="Recordings")
async def list_recordings(controlled: Here) -> RecordingList:
    return RecordingList(recordings=[_info(recording) for recording in required(controlled.recordings)])


@router.get("/recordings/{name}", summary="One recording")
async def get_recording(controlled: Here, name: _Name) -> RecordingInfo:
    return _info(required(controlled.recordings).get(name))


@router.post("/recordings/{name}/stop", summary="Stop a recording; refused if it has ended at its limit")
async def stop_recording(controlled: Here, name: _Name) -> RecordingInfo:
    return _info(required(controlled.recordings).stop(name))


@router.get(
    "/recordings/{name}/trace", summary="Get a recording so far, as a trace", response_class=Response, responses=_TRACE
)
async def download_recording(controlled: Here, name: _Name, form: _Form = "wtrace") -> Response:
    recording = required(controlled.recordings).get(name)
    return _trace(required(controlled.traffic), form, recording.trace(), recording.all_records())


@router.delete("/recordings/{name}", summary="Delete a recording", status_code=204)
async def delete_recording(controlled: Here, name: _Name) -> None:
    required(controlled.recordings).delete(name)


def _info(recording: KeptRecording) -> RecordingInfo:
    return RecordingInfo.of(recording, running=recording.stopped_ms is None)


def _trace(traffic: Traffic, form: str, pieces: Iterable[bytes], records: Iterable[Record]) -> Response:
    """Answers with a trace: the pieces of the capture, or the records as lines."""
    name = {"content-disposition": f'attachment; filename="segstore.{form}"'}
    if form == "jsonl":
        return StreamingResponse(_lines(traffic, records), media_type="application/x-ndjson", headers=name)
    return StreamingResponse(_sent(pieces), media_type="application/octet-stream", headers=name)


async def _sent(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _lines(traffic: Traffic, records: Iterable[Record]) -> AsyncIterator[bytes]:
    """The lines of a fixture, which are made as they are sent."""
    start_ns, following = traffic.started_ns, iter(records)
    yield f"{header_line(FixtureHeader(traffic.metadata, start_ns))}\n".encode()
    while True:
        lines = bytearray()
        for record in islice(following, _LINES_AT_ONCE):
            lines += f"{to_line(record, start_ns)}\n".encode()
            if len(lines) >= _AT_ONCE_BYTES:
                break
        await asyncio.sleep(0)
        if not lines:
            return
        yield bytes(lines)
