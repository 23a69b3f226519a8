"""Tests of `client.sync`. Modules whose tests have another name:

controller, groups, proxies, stream, tables: test_client
"""
