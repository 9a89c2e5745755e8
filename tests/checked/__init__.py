"""Small kernels with one fault each, and tricky ones with none: the checked mode on trial."""
