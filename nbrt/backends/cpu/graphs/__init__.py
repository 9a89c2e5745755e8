"""Graphs on CPU devices: a replay is one call of native code."""
