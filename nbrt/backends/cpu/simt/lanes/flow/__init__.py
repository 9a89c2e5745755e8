"""Control flow of a region: branches, loops, versions, and the ends of regions."""
