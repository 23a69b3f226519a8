"""Tests of `pipeline`. Modules whose tests have another name:

pruning: spark/test_trace_source
session: test_pipeline_session
statements: spark/test_benchmarks
workers: spark/test_shipping
"""
