"""Race checking: uses of memory after its free, and unordered uses by streams."""
