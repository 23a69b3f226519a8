"""Tests of `wire/controller_api`."""
