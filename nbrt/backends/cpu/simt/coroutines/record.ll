; The record of a running block. `block.py` fills in the sizes.

%simt.arguments = type { ${arguments} }

; The states of the lanes; then, if the code has warp operations: masks, source lanes, values and
; results. The state of a thread is 0 after its return, else SITE << 8 | KIND of the operation that it
; waits for. Kind 1 is the barrier of the block, where threads also begin, 2 the barrier of the grid,
; 3 a yield (where threads yield, they begin with it); all others are warp operations.
%simt.warp = type { ${warp} }

; Status, rank of the thread that failed; counts of true and false predicates at the barrier, of the
; threads that have arrived, then of the threads released last; block number, random state; whether a
; thread has made progress.
%simt.control = type { i32, i32, i32, i32, i32, i32, i64, i64, i32 }

; The last field holds the addresses of the threads' coroutine frames. Only it may point to them: LLVM
; assumes that no other pointer aliases a frame.
%simt.block = type { [${shared} x i8], [${warps} x %simt.warp], %simt.control, %simt.arguments, [${threads} x ptr] }
