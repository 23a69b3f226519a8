"""Tests of `client.sync`. Modules whose tests have another name:

proxies: test_client
"""
