"""Tests of `client.sync`. Modules whose tests have another name:

batch, controller, groups, proxies, serializers, stream, tables, watermarks: test_client
"""
