"""The Spark data source `segstore.stream`: Pravega streams as source and sink."""
