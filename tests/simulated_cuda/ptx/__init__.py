"""Translate PTX to native code: parser, LLVM text, compiler, disk cache, driver callbacks.

`translator.register` gives the callbacks to the library. The PTX ISA is NVIDIA's public
specification "Parallel Thread Execution ISA"; comments name its instructions.
"""
