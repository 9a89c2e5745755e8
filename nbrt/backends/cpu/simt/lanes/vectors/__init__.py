"""Values and conditions in the lanes of a group, and the LLVM text of operations on them."""
