"""The instructions by group; importing this package registers their translations."""
