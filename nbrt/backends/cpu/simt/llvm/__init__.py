"""LLVM IR as text: read into a light model, looked at, taken apart and written again."""
