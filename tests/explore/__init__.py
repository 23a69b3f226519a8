"""The explorer, a test module per concern.

exploring, running, judging, points, failures, world: test_exploring, test_clients
results: test_commands
"""
