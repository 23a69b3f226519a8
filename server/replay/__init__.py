"""A recorded trace that answers."""
