"""Tests of `server/controller/api/service`. Modules whose tests have another name:

caller, cluster, scopes, segments, streams, transactions: server/controller/test_service
reader_groups, tables: server/controller/streams/test_reader_groups, server/controller/api/test_answers
"""
