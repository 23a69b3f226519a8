"""Tests of `server/tap`. Modules whose tests have another name:

controller_front: test_tapping
states: test_link
"""
