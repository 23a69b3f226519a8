"""Tests of `client.sync`. Modules whose tests have another name:

batch, controller, groups, proxies, stream, tables: test_client
"""
