"""NumPy's operations on distributed tensors: which placements go in, which come out.

`arithmetic` has the methods; `ufuncs` and `functions` take what NumPy hands over. The rules are
pure functions of shapes and placements (`propagation`, `elementwise_rules`, `matmul.spread_matmul`,
`reductions.reduced_placements`), so that every rank, also one off the mesh, comes to the same
result without asking the others.
"""
