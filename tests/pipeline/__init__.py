"""Tests of `pipeline`. Modules whose tests have another name:

engine: spark/test_report
pruning: spark/test_trace_source
session: test_pipeline_session
spark_engine: spark/test_analysis, spark/test_report
workers: spark/test_shipping
"""
