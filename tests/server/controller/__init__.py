"""Tests of `server/controller`. Modules whose tests have another name:

controller, errors: test_service
"""
