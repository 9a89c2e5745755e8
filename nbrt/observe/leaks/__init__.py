"""Leaks: allocations that are still alive, and the references to them."""
