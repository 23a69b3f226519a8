"""The Spark data source `segstore.trace`: recorded traces as rows."""
