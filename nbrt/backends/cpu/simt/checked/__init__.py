"""Checked mode: an option of the compiler that checks every access, barrier and warp operation.

`compiler` adds the passes of `instrument` and `returns` to those of a kernel. They insert `probes`,
which call the `shadow` runtime on the words that `layout` describes. `blocks` emits the blocks of a
launch in a given order, `launch` runs them, and `reports` converts the runtime's rows to text.
"""
