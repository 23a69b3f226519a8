"""The trace report: analyses on Spark, and an HTML page that shows them."""
