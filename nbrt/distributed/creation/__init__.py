"""Tensors over a mesh from shapes and from arrays of one device."""
