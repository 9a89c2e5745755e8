"""Compilation ahead of launches, in parallel, in worker processes."""
