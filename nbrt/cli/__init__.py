"""The command line: ``nbrt info`` and ``nbrt demo``."""
