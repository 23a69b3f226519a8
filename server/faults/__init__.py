"""Fault rules: what they say, how they are decided, and how a connection applies them."""
