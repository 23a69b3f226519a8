"""The Spark format `segstore.trace`: recorded traces as rows."""
