"""Memory that is used after its end, or before its last use has ended."""
