"""A connection on which faults could happen, but none do, behaves as a plain one: the same tests hold for it."""

from __future__ import annotations

from tests.server.connection.test_connection import *  # noqa: F403
