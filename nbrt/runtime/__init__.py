"""The public objects: devices, guards, streams, events, memory, arrays, kernels."""
