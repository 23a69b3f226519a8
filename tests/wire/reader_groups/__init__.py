"""Tests of `wire/reader_groups`."""
