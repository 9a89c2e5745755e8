"""What people hold: devices, guards, streams, events, memory, arrays, kernels."""
