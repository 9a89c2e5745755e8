"""Loads, stores and atomic operations of a group of lanes."""
