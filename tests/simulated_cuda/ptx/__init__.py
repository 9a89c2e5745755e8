"""Translate PTX to native code: parser, LLVM text, compiler, disk cache, driver callbacks.

`translator.register` gives the callbacks to the library. The PTX ISA is NVIDIA's public
specification "Parallel Thread Execution ISA"; comments name its instructions.

A kernel becomes a function of its parameter block and a SimThread (driver/threads.h), which runs
one CUDA thread. Instructions that need other threads call the driver. What the ISA leaves open:

- Results of `.approx` instructions: approximations.py.
- Integer division by zero gives all bits set, the remainder is the dividend.
- NaN results of .f32 are 0x7fffffff, of f16 and bf16 0x7fff, also of conversions; the payload of
  .f64 is that of the processor.
- Registers start as 0, local memory with a pattern.
- Clocks count nanoseconds. A cluster has one block. `brkpt` traps, and so does `brx.idx` with an
  index outside its list.

Addresses of the global, constant, local and parameter spaces are generic addresses; those of shared
memory count from 0. Textures, surfaces, tensors, `mbarrier`, `cp.async` and matrix instructions are
refused with CUDA_ERROR_INVALID_PTX, as is every opcode and modifier that no translation lists.
"""
