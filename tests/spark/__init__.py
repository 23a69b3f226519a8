"""Tests with Spark. They share one session, so all of them run in one process: see `SPARK`."""

import pytest

__all__ = ["SPARK"]

SPARK = [
    pytest.mark.needs("Java 17 or newer"),
    pytest.mark.timeout(600),  # the first one starts Java, and the machine may have other things to do
]
"""The marks of every module here: `pytestmark = SPARK`."""
