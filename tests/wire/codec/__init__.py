"""Tests of `wire/codec`."""
