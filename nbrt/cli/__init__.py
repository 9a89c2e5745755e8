"""The command line: ``nbrt info``, ``nbrt audit`` and ``nbrt demo``."""
