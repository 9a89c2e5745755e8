"""Observation of devices, which never changes what they do: history, plots, leaks, races.

The package has no public name: its API is part of `nbrt.memory`.
"""
