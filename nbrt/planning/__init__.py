"""Fake devices and memory plans: what a program needs, from a run without its GPU."""
