"""Tests of `server/toxics`. Modules whose tests have another name:

stages: test_pipe
relay: test_toxics
"""
