"""The extension, as the codec uses it: C first, and Python for what C leaves.

Invariant: each function here returns the result of the Python function that it is given, or raises its error; C answers
only where both would agree. A call of C returns a value, or None if Python has to answer.

An extension that does not load, that was built for another version of segstore, or from other sources, as far as its
types tell, is refused with a warning.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from segstore import __version__
from segstore.wire.codec.speed.programs import Acknowledged, acks_of, join_of, low_bytes, make_codec, run_of, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from segstore.wire.codec.joining import Joined
    from segstore.wire.schema import Command

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

NAME: Final = "segstore._speed"
TYPES: Final = {"Acks", "Codec", "Frames", "Rows", "Shape", "Shortcut"}


class Accelerator:
    """The extension with the tables of all commands."""

    def __init__(self, speed: Any, commands: Iterable[type[Command]]) -> None:
        self._speed = speed
        self._codec = make_codec(speed, commands)

    def frames(
        self, light: Iterable[int], *, joined: Joined | None, in_rows: type[Command] | None, most_elements: int | None
    ) -> Callable[..., tuple[int, int]]:
        """As `segstore.wire.codec.framing.frames_of`; light: codes of commands whose decoding takes no time."""
        most = sys.maxsize if most_elements is None else most_elements
        join, run = () if joined is None else join_of(joined), () if in_rows is None else run_of(in_rows)
        loop: Callable[..., tuple[int, int]] = self._speed.Frames(self._codec, low_bytes(light), most, join, run)
        return loop

    def acknowledger(self, acks: Acknowledged) -> Callable[..., int]:
        """As `segstore.wire.blocks.acknowledge`, for rows as they are here."""
        acknowledge: Callable[..., int] = self._speed.Acks(*acks_of(acks))
        return acknowledge

    def rows(
        self,
        columns: tuple[tuple[Any, ...], ...],
        programs: Mapping[type[Command], tuple[tuple[int, str, Any], ...]],
        conditions: tuple[tuple[Any, ...], ...],
        *,
        kinds: bytes,
        decodes: bool,
    ) -> Any:
        """An object whose `fill` makes columns of records: see `segstore.pipeline.trace.batches`.

        columns: type, source and labels. programs: class → steps: the column, how it is filled, and the path of an
        attribute or a constant; frames of other commands are left to Python. conditions: as (source, whether it may be
        missing, whether the ranges are excluded, ranges); a record must meet all. kinds: for each kind of records 0 for
        no frame, 1 for a frame, 2 for a record that is left to Python. decodes: whether frames are read.
        """
        coded = tuple((cls.code, tuple(step_of(cls, *step) for step in steps)) for cls, steps in programs.items())
        return self._speed.Rows(self._codec, columns, coded, conditions, kinds, decodes)

    def shortcut(self, behind: F) -> F:
        """The function `behind` with its equal in C, which has the same name, in front.

        C is asked if it is called with all arguments by position, and no more but `unknown` of `decode`.
        """
        shortcut: Any = self._speed.Shortcut(self._codec, behind.__name__, behind)
        functools.update_wrapper(shortcut, behind)
        return cast("F", shortcut)


def load(commands: Iterable[type[Command]]) -> Accelerator | None:
    """Returns the accelerator for these commands, or None; warns if an extension was built but is not used."""
    try:
        from segstore import _speed
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) and "cannot import name '_speed'" not in str(error):
            _refuse(f"does not load ({error})")
        return None
    if __version__ != _speed.VERSION:
        _refuse(f"was built for segstore {_speed.VERSION}, and this is {__version__}")
        return None
    if missing := TYPES - vars(_speed).keys():
        _refuse(f"was built from other sources: it lacks {', '.join(sorted(missing))}")
        return None
    try:
        return Accelerator(_speed, commands)
    except (TypeError, ValueError, AttributeError) as error:
        _refuse(f"does not know these tables ({error})")
        return None


def _refuse(why: str) -> None:
    text = f"the extension {NAME} {why}; the codec in Python is used: install segstore again to build it"
    warnings.warn(text, RuntimeWarning, stacklevel=3)
