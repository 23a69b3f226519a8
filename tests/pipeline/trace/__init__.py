"""Tests of `pipeline/trace`. Modules whose tests have another name:

packet_files: test_packets
rows, vectorised: test_vectorised_rows
source, stream: spark/test_trace_source
"""
