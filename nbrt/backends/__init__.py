"""Kinds of device: the contract they fulfil, the registry that finds them, two of our own."""
