"""Tests of `server/control_api`. Modules whose tests have another name:

controlled, fronts, problems: test_resources, test_listening
models: server/control_api/routes/test_recordings
writer_names: test_listening
"""
