"""Tests of `wire/codec/speed`: what C answers is what Python answers, and nothing breaks it. Modules whose tests have
another name:

programs: test_backend
"""
