"""Tests of `wire/codec/generate`. Modules whose tests have another name:

decoder, encoder, runtime: test_source, wire/codec/test_codec
"""
