"""Random numbers of many ranks: trackers, named streams, draws of distributed tensors."""
