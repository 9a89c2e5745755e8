; What is known of a block while it runs. `block.py` fills in the sizes.

%simt.arguments = type { ${arguments} }

; states of the lanes, then, if the code has operations of the warp: masks, source lanes, values and
; answers. A thread's state is 0 when it has returned, else SITE << 8 | KIND of what it waits for.
; Kind 1 is the block's barrier, where threads also begin, 2 the grid's, 3 says that the thread has
; yielded (and, where threads yield, that it begins); all others are the warp's.
%simt.warp = type { ${warp} }

; status, rank of the thread that failed; threads that said yes, or no, at the barrier: those that
; have arrived, then those it let pass; block number, random state; whether a thread has made
; progress
%simt.control = type { i32, i32, i32, i32, i32, i32, i64, i64, i32 }

; The last are the threads' frames. They are only reached from here: LLVM takes a frame for memory
; of its own, which no other address leads to.
%simt.block = type { [${shared} x i8], [${warps} x %simt.warp], %simt.control, %simt.arguments, [${threads} x ptr] }
