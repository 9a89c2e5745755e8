"""Adapters: other libraries' allocators as sources of nbrt's pools."""
