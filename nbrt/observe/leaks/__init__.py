"""Who holds memory: what is still alive, and what keeps it so."""
