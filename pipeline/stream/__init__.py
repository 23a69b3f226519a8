"""The Spark format `segstore.stream`: Pravega's streams as source and sink."""
