"""The routes of the control API, a module per kind of resource, and the common parts of their paths."""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, IntegerConvertor, register_url_convertor

__all__ = ["NAME", "NUMBER"]

NAME: Final = "{name:name}"
"""A name with any characters. The library's own pattern ends at a line break, and ignores one at the end of the name:
its path would lead to another resource.
"""
NUMBER: Final = "{number:number}"
"""The number of a record. Python refuses to read integers of thousands of digits."""


class _Name(Convertor[str]):
    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Number(IntegerConvertor):
    regex = "[0-9]{1,4000}"


register_url_convertor("name", _Name())
register_url_convertor("number", _Number())
