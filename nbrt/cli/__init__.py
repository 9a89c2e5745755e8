"""The command line: ``nbrt info``, ``nbrt audit``, ``nbrt plan`` and ``nbrt demo``."""
