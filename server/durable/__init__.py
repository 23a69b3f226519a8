"""The durable store: journals, snapshots, chunk files, fences, and their verification."""
