"""Tests of `wire/schema`."""
