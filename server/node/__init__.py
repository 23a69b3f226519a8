"""A segment store that listens; the mock."""
