"""Snapshots as pictures: a timeline, a map of segments, a page."""
