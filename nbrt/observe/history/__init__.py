"""What happened to memory: a record of events, snapshots, summaries."""
