"""Tests of `server/control_api/routes`. Modules whose tests have another name:

about, connections, segments, streams: server/control_api/test_resources
containers: server/control_api/test_containers
requests: server/control_api/test_requests
"""
