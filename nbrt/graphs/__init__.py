"""Graphs: captured once, replayed any number of times."""
