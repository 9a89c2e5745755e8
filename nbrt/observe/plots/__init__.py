"""Snapshots of memory as figures and as an HTML report."""
