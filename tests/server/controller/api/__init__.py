"""Tests of `server/controller/api`. Modules whose tests have another name:

convert: test_answers
executing: server/controller/test_huge_requests
resources: test_auth
"""
