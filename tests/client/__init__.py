"""Tests of `client`. Modules whose tests have another name:

control_api: test_pytest_plugin
"""
