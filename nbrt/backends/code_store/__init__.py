"""Compiled code on disk, shared by the processes of a user: folder, entries, bundles."""
