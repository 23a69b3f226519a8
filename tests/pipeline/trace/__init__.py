"""Tests of `pipeline/trace`. Modules whose tests have another name:

packet_files: test_packets
reading: test_files
source: spark/test_trace_source
"""
