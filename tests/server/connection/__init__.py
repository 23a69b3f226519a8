"""Tests of `server/connection`. Modules whose tests have another name:

requests: test_session, test_service
states: test_connection_life, test_connection_lost

Most tests of connections use real sockets. `test_connection_life`, `test_connection_lost`, `test_connection_flow` and
`test_connection_rules` drive the loop, the transport and the disk by hand (`driven`).
"""
