"""Tests of `client/watermarks`."""
