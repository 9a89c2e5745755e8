"""Watching what devices do, never steering it: history, pictures, leaks, races."""
