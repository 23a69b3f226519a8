"""The report over a trace."""
