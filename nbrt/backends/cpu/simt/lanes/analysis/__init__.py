"""Properties of a thread that its vector code relies on: strides, regions, loops, legality."""
