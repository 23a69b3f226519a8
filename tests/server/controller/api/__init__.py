"""Tests of `server/controller/api`. Modules whose tests have another name:

convert: test_answers
resources: test_auth
"""
