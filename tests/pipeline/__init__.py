"""Tests of `pipeline`. Modules whose tests have another name:

engine: spark/test_report
session: test_pipeline_session, spark/test_trace_source
spark_engine: spark/test_analysis, spark/test_report
workers: spark/test_sessions, spark/test_shipping
"""
