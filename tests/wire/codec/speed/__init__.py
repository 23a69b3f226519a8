"""Tests of `wire/codec/speed`: what C answers is what Python answers, and nothing breaks it."""
