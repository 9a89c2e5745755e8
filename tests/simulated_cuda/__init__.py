"""A simulated CUDA driver for the tests; docs/design/simulated_cuda.md says what it is for."""
