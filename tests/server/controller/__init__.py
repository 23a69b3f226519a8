"""Tests of `server/controller`. Modules whose tests have another name:

controller, errors, policies: test_service
segment_admin: server/segments/test_local, server/segments/test_remote
"""
