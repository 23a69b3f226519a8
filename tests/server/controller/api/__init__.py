"""Tests of `server/controller/api`. Modules whose tests have another name:

convert: test_answers
caller: test_auth
service: server/controller/test_service, server/controller/streams/test_reader_groups
"""
