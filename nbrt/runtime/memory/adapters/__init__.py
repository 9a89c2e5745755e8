"""Other libraries' allocators as sources of nbrt's pools, one small file for each."""
