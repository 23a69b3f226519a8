"""Tests of `server/durable`."""
