"""The explorer of cut points."""
