"""Tests of `wire/codec`. Modules whose tests have another name:

older_frames: test_versions
"""
