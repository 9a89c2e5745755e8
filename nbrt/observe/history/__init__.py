"""Memory history: recorded events, snapshots, summaries."""
