"""Device memory as people see it: pools, statistics, streams that use it, limits, recovery."""
