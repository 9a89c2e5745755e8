"""Code generation: from the code of one thread to the entry function of a launch."""
