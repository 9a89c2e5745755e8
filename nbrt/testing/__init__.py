"""Tools for testing code that runs on nbrt: latches that hold a stream, command recorders."""
