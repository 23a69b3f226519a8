"""A tap: passes a cluster's traffic on, records it, and applies fault rules."""
