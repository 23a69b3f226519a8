"""Tests of `wire/codec/generate`. Modules whose tests have another name:

decoder, encoder, runtime, source: test_compiler, wire/codec/test_codec
"""
