"""Tests of `pipeline/report`. Modules whose tests have another name:

analysis, analysis_usage: spark/test_analysis, spark/test_report
analysis_steps: test_connection, spark/test_report
exchange: test_reference, test_connection
plots: test_page, test_browser
report: spark/test_report
"""
