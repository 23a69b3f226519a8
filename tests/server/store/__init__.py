"""Tests of `server/store`. Modules whose tests have another name:

errors: server/durable/test_chunk_files, test_store
state: test_store, test_container
"""
