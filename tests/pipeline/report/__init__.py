"""Tests of `pipeline/report`. Modules whose tests have another name:

analysis, analysis_checks, analysis_steps, analysis_usage: spark/test_analysis, spark/test_report
plots: test_page, test_browser
report: spark/test_report
"""
