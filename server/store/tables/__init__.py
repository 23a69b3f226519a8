"""Table segments: keys and their versions, iteration, deltas, compaction."""
