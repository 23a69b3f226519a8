"""Tests of `server/connection`. Modules whose tests have another name:

refusals, requests: test_session, test_service
"""
