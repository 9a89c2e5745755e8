"""NumPy's operations on distributed tensors, and their rules of placements.

`arithmetic` has the methods; `ufuncs` and `functions` implement NumPy's protocols. The rules are
pure functions of shapes and placements (`propagation`, `elementwise_rules`, `matmul.spread_matmul`,
`reductions.reduced_placements`), so that every rank, also off the mesh, computes the same
result without communication.
"""
