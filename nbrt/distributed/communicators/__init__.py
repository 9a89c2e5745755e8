"""How ranks talk: one Protocol, and an adapter for each transport."""
