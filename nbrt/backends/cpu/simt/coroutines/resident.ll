; The scheduler of resident blocks, for launches whose threads spin. Each OS thread has several
; resident blocks and runs each of their threads in turn until it yields, waits or returns. It begins
; further blocks if the resident ones make no progress.

; Record that a thread has made progress: it has changed memory or reached another site.
define internal void @simt.changed(ptr %block, i1 %is) alwaysinline {
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 8
  %old = load i32, ptr %at
  %one = zext i1 %is to i32
  %new = or i32 %old, %one
  store i32 %new, ptr %at
  ret void
}

; Resume the lanes of a warp that have yielded or that a warp operation has released.
define internal i32 @simt.warp.turn(ptr %block, i32 %warp) {
start:
  %status.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 0
  %base = shl i32 %warp, 5
  %begin = call i32 @simt.waiting(ptr %block, i32 %warp, i32 3)
  br label %pass
pass:
  %ready = phi i32 [ %begin, %start ], [ %released, %resolve ]
  %none = icmp eq i32 %ready, 0
  br i1 %none, label %end, label %next
next:
  %left = phi i32 [ %ready, %pass ], [ %fewer, %resumed ]
  %lane = call i32 @simt.pick(ptr %block, i32 %left)
  %rank = or i32 %base, %lane
  %frame.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 4, i32 %rank
  %frame = load ptr, ptr %frame.at
  call void @llvm.coro.resume(ptr %frame)
  %status = load i32, ptr %status.at
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %resumed, label %end
resumed:
  %bit = shl i32 1, %lane
  %fewer = xor i32 %left, %bit
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %resolve, label %next
resolve:
  %released = call i32 @simt.warp.resolve(ptr %block, i32 %warp)
  br label %pass
end:
  %result = phi i32 [ 0, %pass ], [ %status, %next ]
  ret i32 %result
}

; Return bits for the threads of a block that have not returned: 1 if there are any, 2 if one of them
; does not wait for an operation of this kind.
define internal i32 @simt.block.live(ptr %block, i32 %kind) {
start:
  %one = insertelement <32 x i32> poison, i32 %kind, i32 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  br label %next
next:
  %warp = phi i32 [ 0, %start ], [ %following, %next ]
  %before = phi i32 [ 0, %start ], [ %after, %next ]
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 0
  %states = load <32 x i32>, ptr %at, align 64
  %lives = icmp ne <32 x i32> %states, zeroinitializer
  %live = bitcast <32 x i1> %lives to i32
  %kinds = and <32 x i32> %states, splat (i32 255)
  %differs = icmp ne <32 x i32> %kinds, %all
  %different = bitcast <32 x i1> %differs to i32
  %elsewhere = and i32 %live, %different
  %is.live = icmp ne i32 %live, 0
  %is.elsewhere = icmp ne i32 %elsewhere, 0
  %bit.0 = zext i1 %is.live to i32
  %bit.1 = select i1 %is.elsewhere, i32 2, i32 0
  %bits = or i32 %bit.0, %bit.1
  %after = or i32 %before, %bits
  %following = add nuw nsw i32 %warp, 1
  %last = icmp eq i32 %following, ${warps}
  br i1 %last, label %end, label %next
end:
  ret i32 %after
}

; Release the threads that wait for an operation of this kind.
define internal void @simt.block.release(ptr %block, i32 %kind) {
start:
  br label %next
next:
  %warp = phi i32 [ 0, %start ], [ %following, %next ]
  %lanes = call i32 @simt.waiting(ptr %block, i32 %warp, i32 %kind)
  %chosen = bitcast i32 %lanes to <32 x i1>
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 0
  %states = load <32 x i32>, ptr %at, align 64
  %moved = select <32 x i1> %chosen, <32 x i32> splat (i32 3), <32 x i32> %states
  store <32 x i32> %moved, ptr %at, align 64
  %following = add nuw nsw i32 %warp, 1
  %last = icmp eq i32 %following, ${warps}
  br i1 %last, label %end, label %next
end:
  ret void
}

; Run every thread of a block that can run, again as long as all threads meet at barriers. Return 0 if
; some have not returned, 1 if all have, 2 if one has failed.
define internal i32 @simt.block.turn(ptr %block) {
start:
  %arrived.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 2
  %passed.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 4
  br label %phase
phase:
  br label %next
next:
  %left = phi i32 [ ${every_warp}, %phase ], [ %fewer, %ran ]
  %warp = call i32 @simt.pick(ptr %block, i32 %left)
  %status = call i32 @simt.warp.turn(ptr %block, i32 %warp)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %ran, label %failed
ran:
  %bit = shl i32 1, %warp
  %fewer = xor i32 %left, %bit
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %together, label %next
together:
  %live = call i32 @simt.block.live(ptr %block, i32 1)
  switch i32 %live, label %pending [ i32 0, label %done i32 1, label %barrier ]
barrier:
  %votes = load <2 x i32>, ptr %arrived.at, align 4
  store <2 x i32> %votes, ptr %passed.at, align 4
  store <2 x i32> zeroinitializer, ptr %arrived.at, align 4
  call void @simt.block.release(ptr %block, i32 1)
  br label %phase
pending:
  ret i32 0
done:
  ret i32 1
failed:
  ret i32 2
}

; The activity of a launch is one word that its OS threads share: an epoch, the count of changes (31
; bits), the number of OS threads that work on the launch (16), and the number of those whose blocks
; have made no progress in this epoch (16). It is negative after the launch has failed.

define internal void @simt.activity.add(ptr %activity, i64 %threads) {
start:
  %present = shl i64 %threads, 16
  %first = load atomic i64, ptr %activity seq_cst, align 8
  br label %try
try:
  %old = phi i64 [ %first, %start ], [ %found, %attempt ]
  %ended = icmp slt i64 %old, 0
  br i1 %ended, label %end, label %attempt
attempt:
  %busy = and i64 %old, -65536
  %counted = add i64 %busy, %present
  %next = add i64 %counted, 4294967296
  %new = and i64 %next, 9223372036854775807
  %swap = cmpxchg ptr %activity, i64 %old, i64 %new seq_cst seq_cst
  %found = extractvalue { i64, i1 } %swap, 0
  %done = extractvalue { i64, i1 } %swap, 1
  br i1 %done, label %end, label %try
end:
  ret void
}

; Declare that the blocks of this OS thread have made no progress since the activity was %seen; return
; whether all OS threads have declared so. %declared holds the epoch of the last declaration.
define internal i1 @simt.activity.idle(ptr %activity, i64 %seen, ptr %declared) {
start:
  %epoch = lshr i64 %seen, 32
  %first = load atomic i64, ptr %activity seq_cst, align 8
  br label %try
try:
  %old = phi i64 [ %first, %start ], [ %found, %attempt ]
  %now = lshr i64 %old, 32
  %same = icmp eq i64 %now, %epoch
  br i1 %same, label %known, label %busy
known:
  %before = load i64, ptr %declared
  %said = icmp eq i64 %before, %epoch
  br i1 %said, label %end, label %attempt
attempt:
  %more = add i64 %old, 1
  %swap = cmpxchg ptr %activity, i64 %old, i64 %more seq_cst seq_cst
  %found = extractvalue { i64, i1 } %swap, 0
  %done = extractvalue { i64, i1 } %swap, 1
  br i1 %done, label %say, label %try
say:
  store i64 %epoch, ptr %declared
  br label %end
end:
  %word = phi i64 [ %old, %known ], [ %more, %say ]
  %idle = and i64 %word, 65535
  %shifted = lshr i64 %word, 16
  %present = and i64 %shifted, 65535
  %all = icmp eq i64 %idle, %present
  ret i1 %all
busy:
  ret i1 false
}

; Claim the next block: return its number, or -1 if there is none.
define internal i64 @simt.claim(ptr %next, i64 %count, ptr %order) {
start:
  %turn = atomicrmw add ptr %next, i64 1 monotonic
  %left = icmp slt i64 %turn, %count
  br i1 %left, label %taken, label %none
taken:
  %is.plain = icmp eq ptr %order, null
  br i1 %is.plain, label %plain, label %ordered
plain:
  ret i64 %turn
ordered:
  %at = getelementptr inbounds i64, ptr %order, i64 %turn
  %number = load i64, ptr %at
  ret i64 %number
none:
  ret i64 -1
}

; Release the threads at the barrier of the grid if all threads of the grid wait there; return whether.
define internal i1 @simt.grid.pass(ptr %table, i64 %count) {
start:
  br label %look
look:
  %index = phi i64 [ 0, %start ], [ %following, %looked ]
  %at = getelementptr inbounds ptr, ptr %table, i64 %index
  %block = load ptr, ptr %at
  %live = call i32 @simt.block.live(ptr %block, i32 2)
  %there = icmp ult i32 %live, 2
  br i1 %there, label %looked, label %no
looked:
  %following = add nuw nsw i64 %index, 1
  %seen = icmp eq i64 %following, %count
  br i1 %seen, label %release, label %look
release:
  %released = phi i64 [ 0, %looked ], [ %released.next, %release ]
  %released.at = getelementptr inbounds ptr, ptr %table, i64 %released
  %released.block = load ptr, ptr %released.at
  call void @simt.block.release(ptr %released.block, i32 2)
  %released.next = add nuw nsw i64 %released, 1
  %all = icmp eq i64 %released.next, %count
  br i1 %all, label %passed, label %release
passed:
  ret i1 true
no:
  ret i1 false
}

; Store the threadIdx and the blockIdx of the thread in the block's record.
define internal void @simt.where.grid(ptr %block, ptr %where) {
  call void @simt.where(ptr %block, ptr %where)
  %from = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 3, i32 ${block_field}
  %to = getelementptr inbounds i32, ptr %where, i64 3
  %indices = load [3 x i32], ptr %from
  store [3 x i32] %indices, ptr %to
  ret void
}

; Find a thread that yields, else one that waits; store its threadIdx, blockIdx and site.
define internal void @simt.find(ptr %table, i64 %count, ptr %where) {
start:
  br label %look
look:
  %index = phi i64 [ 0, %start ], [ %index.next, %looked ]
  %warp = phi i32 [ 0, %start ], [ %warp.next, %looked ]
  %any = phi i1 [ false, %start ], [ %any.next, %looked ]
  %at = getelementptr inbounds ptr, ptr %table, i64 %index
  %block = load ptr, ptr %at
  %states.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 0
  %states = load <32 x i32>, ptr %states.at, align 64
  %lives = icmp ne <32 x i32> %states, zeroinitializer
  %live = bitcast <32 x i1> %lives to i32
  %yields = call i32 @simt.waiting(ptr %block, i32 %warp, i32 3)
  %lanes = select i1 %any, i32 %live, i32 %yields
  %none = icmp eq i32 %lanes, 0
  br i1 %none, label %looked, label %found
looked:
  %warp.more = add nuw nsw i32 %warp, 1
  %warp.last = icmp eq i32 %warp.more, ${warps}
  %warp.next = select i1 %warp.last, i32 0, i32 %warp.more
  %step = zext i1 %warp.last to i64
  %index.more = add nuw nsw i64 %index, %step
  %index.last = icmp eq i64 %index.more, %count
  %index.next = select i1 %index.last, i64 0, i64 %index.more
  %any.next = or i1 %any, %index.last
  br label %look
found:
  %lane = call i32 @llvm.cttz.i32(i32 %lanes, i1 true)
  %base = shl i32 %warp, 5
  %rank = or i32 %base, %lane
  %rank.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 1
  store i32 %rank, ptr %rank.at
  call void @simt.where.grid(ptr %block, ptr %where)
  %state.at = call ptr @simt.state(ptr %block, i32 %rank)
  %state = load i32, ptr %state.at
  %site = lshr i32 %state, 8
  %site.at = getelementptr inbounds i32, ptr %where, i64 6
  store i32 %site, ptr %site.at
  ret void
}

; Run blocks until none is left. Blocks are claimed from %simt.next, %simt.count and %simt.order;
; %simt.limit is the maximum number of resident blocks; %simt.wait is called if no block makes progress.
define i32 ${name}.resident"(${parameters}) {
simt.entry:
  %simt.live.slot = alloca i64
  %simt.made.slot = alloca i64
  %simt.want.slot = alloca i64
  %simt.sweeps.slot = alloca i64
  %simt.rounds.slot = alloca i64
  %simt.stuck.slot = alloca i64
  %simt.seen.slot = alloca i64
  %simt.still.slot = alloca i1
  %simt.declared = alloca i64
  store i64 0, ptr %simt.live.slot
  store i64 0, ptr %simt.made.slot
  store i64 1, ptr %simt.want.slot
  store i64 0, ptr %simt.sweeps.slot
  store i64 0, ptr %simt.rounds.slot
  store i64 0, ptr %simt.stuck.slot
  store i64 -1, ptr %simt.declared
  %simt.columns = zext i32 ${grid_x} to i64
  %simt.rows = zext i32 ${grid_y} to i64
  %simt.bytes = call i64 @simt.block.bytes()
  %simt.sum = add i64 %simt.bytes, %simt.shared.bytes
  %simt.asked = add i64 %simt.sum, ${above}
  %simt.fewer = icmp slt i64 %simt.count, %simt.limit
  %simt.most = select i1 %simt.fewer, i64 %simt.count, i64 %simt.limit
  %simt.table.bytes = shl i64 %simt.most, 4
  %simt.table = call ptr @malloc(i64 %simt.table.bytes)
  %simt.memories = getelementptr inbounds ptr, ptr %simt.table, i64 %simt.most
  %simt.no.table = icmp eq ptr %simt.table, null
  br i1 %simt.no.table, label %simt.full, label %simt.begin
simt.begin:
  call void @simt.activity.add(ptr %simt.activity, i64 1)
  br label %simt.fill

; Begin blocks up to the wanted number, as long as there are any.
simt.fill:
  %simt.got = phi i1 [ false, %simt.begin ], [ false, %simt.empty ], [ false, %simt.more ], [ true, %simt.started ]
  %simt.live = load i64, ptr %simt.live.slot
  %simt.want = load i64, ptr %simt.want.slot
  %simt.wants = icmp slt i64 %simt.live, %simt.want
  %simt.room = icmp slt i64 %simt.live, %simt.most
  %simt.fills = and i1 %simt.wants, %simt.room
  br i1 %simt.fills, label %simt.take, label %simt.filled
simt.take:
  %simt.made = load i64, ptr %simt.made.slot
  %simt.spare = icmp slt i64 %simt.live, %simt.made
  br i1 %simt.spare, label %simt.ask, label %simt.make
simt.make:
  %simt.memory = call ptr @malloc(i64 %simt.asked)
  %simt.none = icmp eq ptr %simt.memory, null
  br i1 %simt.none, label %simt.scarce, label %simt.hold
simt.scarce:
  %simt.has.one = icmp ne i64 %simt.live, 0
  br i1 %simt.has.one, label %simt.filled, label %simt.exhausted
simt.hold:
  %simt.memory.at = getelementptr inbounds ptr, ptr %simt.memories, i64 %simt.made
  store ptr %simt.memory, ptr %simt.memory.at
  %simt.fresh = call ptr @simt.aligned(ptr %simt.memory)
  %simt.fresh.at = getelementptr inbounds ptr, ptr %simt.table, i64 %simt.made
  store ptr %simt.fresh, ptr %simt.fresh.at
  %simt.made.more = add i64 %simt.made, 1
  store i64 %simt.made.more, ptr %simt.made.slot
  br label %simt.ask
simt.ask:
  %simt.number = call i64 @simt.claim(ptr %simt.next, i64 %simt.count, ptr %simt.order)
  %simt.over = icmp slt i64 %simt.number, 0
  br i1 %simt.over, label %simt.filled, label %simt.started
simt.started:
  %simt.block.at = getelementptr inbounds ptr, ptr %simt.table, i64 %simt.live
  %simt.block = load ptr, ptr %simt.block.at
${store_arguments}
  %simt.own = getelementptr inbounds i8, ptr %simt.block, i64 %simt.bytes
  %simt.own.at = getelementptr inbounds %simt.block, ptr %simt.block, i32 0, i32 3, i32 ${shared_field}
  store ptr %simt.own, ptr %simt.own.at
  %simt.place = getelementptr inbounds %simt.block, ptr %simt.block, i32 0, i32 3, i32 ${block_field}
  %simt.x.wide = urem i64 %simt.number, %simt.columns
  %simt.x = trunc i64 %simt.x.wide to i32
  store i32 %simt.x, ptr %simt.place
  %simt.row = udiv i64 %simt.number, %simt.columns
  %simt.y.wide = urem i64 %simt.row, %simt.rows
  %simt.y = trunc i64 %simt.y.wide to i32
  %simt.y.at = getelementptr inbounds i32, ptr %simt.place, i64 1
  store i32 %simt.y, ptr %simt.y.at
  %simt.z.wide = udiv i64 %simt.row, %simt.rows
  %simt.z = trunc i64 %simt.z.wide to i32
  %simt.z.at = getelementptr inbounds i32, ptr %simt.place, i64 2
  store i32 %simt.z, ptr %simt.z.at
  call void @simt.block.start(ptr %simt.block, i64 %simt.number, i64 ${seed})
  %simt.live.more = add i64 %simt.live, 1
  store i64 %simt.live.more, ptr %simt.live.slot
  store i64 0, ptr %simt.sweeps.slot
  br label %simt.fill
simt.filled:
  %simt.began = phi i1 [ %simt.got, %simt.fill ], [ %simt.got, %simt.scarce ], [ %simt.got, %simt.ask ]
  br i1 %simt.began, label %simt.progress, label %simt.not.more
simt.not.more:
  %simt.any = icmp ne i64 %simt.live, 0
  br i1 %simt.any, label %simt.idle, label %simt.leave
simt.progress:
  call void @simt.activity.add(ptr %simt.activity, i64 0)
  store i64 0, ptr %simt.rounds.slot
  store i64 0, ptr %simt.stuck.slot
  br label %simt.sweep

; Run every resident block once.
simt.sweep:
  %simt.code = call i32 @simt.poll(ptr %simt.stop)
  %simt.going = icmp eq i32 %simt.code, 0
  br i1 %simt.going, label %simt.observe, label %simt.stopped
simt.observe:
  %simt.seen = load atomic i64, ptr %simt.activity seq_cst, align 8
  store i64 %simt.seen, ptr %simt.seen.slot
  %simt.failing = icmp slt i64 %simt.seen, 0
  br i1 %simt.failing, label %simt.stopped, label %simt.run
simt.run:
  %simt.all = load i64, ptr %simt.live.slot
  br label %simt.turn
simt.turn:
  %simt.index = phi i64 [ 0, %simt.run ], [ %simt.following, %simt.turned ]
  %simt.kept = phi i64 [ 0, %simt.run ], [ %simt.kept.next, %simt.turned ]
  %simt.changes = phi i32 [ 0, %simt.run ], [ %simt.changes.next, %simt.turned ]
  %simt.turn.at = getelementptr inbounds ptr, ptr %simt.table, i64 %simt.index
  %simt.turn.block = load ptr, ptr %simt.turn.at
  %simt.outcome = call i32 @simt.block.turn(ptr %simt.turn.block)
  %simt.changed.at = getelementptr inbounds %simt.block, ptr %simt.turn.block, i32 0, i32 2, i32 8
  %simt.changed.here = load i32, ptr %simt.changed.at
  store i32 0, ptr %simt.changed.at
  %simt.changes.next = or i32 %simt.changes, %simt.changed.here
  switch i32 %simt.outcome, label %simt.failed [ i32 0, label %simt.stays i32 1, label %simt.retired ]
simt.stays:
  %simt.kept.at = getelementptr inbounds ptr, ptr %simt.table, i64 %simt.kept
  %simt.other = load ptr, ptr %simt.kept.at
  store ptr %simt.turn.block, ptr %simt.kept.at
  store ptr %simt.other, ptr %simt.turn.at
  %simt.kept.more = add i64 %simt.kept, 1
  br label %simt.turned
simt.retired:
  store i64 0, ptr %simt.sweeps.slot
  br label %simt.turned
simt.turned:
  %simt.kept.next = phi i64 [ %simt.kept.more, %simt.stays ], [ %simt.kept, %simt.retired ]
  %simt.following = add i64 %simt.index, 1
  %simt.last = icmp eq i64 %simt.following, %simt.all
  br i1 %simt.last, label %simt.swept, label %simt.turn
simt.swept:
  store i64 %simt.kept.next, ptr %simt.live.slot
  %simt.done = icmp eq i64 %simt.kept.next, 0
  br i1 %simt.done, label %simt.empty, label %simt.decide
simt.empty:
  store i64 1, ptr %simt.want.slot
  br label %simt.fill
simt.decide:
  %simt.sweeps = load i64, ptr %simt.sweeps.slot
  %simt.sweeps.more = add i64 %simt.sweeps, 1
  store i64 %simt.sweeps.more, ptr %simt.sweeps.slot
  %simt.changed = icmp ne i32 %simt.changes.next, 0
  %simt.long = icmp sgt i64 %simt.sweeps.more, ${patient_sweeps}
  %simt.stays.same = xor i1 %simt.changed, true
  store i1 %simt.stays.same, ptr %simt.still.slot
  %simt.extends = or i1 %simt.stays.same, %simt.long
  br i1 %simt.extends, label %simt.more, label %simt.progress
simt.more:
  %simt.double = shl i64 %simt.kept.next, 1
  store i64 %simt.double, ptr %simt.want.slot
  br label %simt.fill

; No block is left to begin.
simt.idle:
  %simt.still = load i1, ptr %simt.still.slot
  br i1 %simt.still, label %simt.grid, label %simt.progress
simt.grid:
  br i1 ${has_grid}, label %simt.grid.try, label %simt.quiet
simt.grid.try:
  %simt.passes = call i1 @simt.grid.pass(ptr %simt.table, i64 %simt.live)
  br i1 %simt.passes, label %simt.progress, label %simt.quiet
simt.quiet:
  %simt.last.seen = load i64, ptr %simt.seen.slot
  %simt.is.stuck = call i1 @simt.activity.idle(ptr %simt.activity, i64 %simt.last.seen, ptr %simt.declared)
  %simt.rounds = load i64, ptr %simt.rounds.slot
  %simt.rounds.more = add i64 %simt.rounds, 1
  store i64 %simt.rounds.more, ptr %simt.rounds.slot
  %simt.waited = icmp sgt i64 %simt.rounds.more, ${patient_rounds}
  %simt.waits = or i1 %simt.is.stuck, %simt.waited
  br i1 %simt.waits, label %simt.call, label %simt.sweep
simt.call:
  %simt.stuck = load i64, ptr %simt.stuck.slot
  %simt.stuck.next = add i64 %simt.stuck, 1
  %simt.stuck.more = select i1 %simt.is.stuck, i64 %simt.stuck.next, i64 0
  store i64 %simt.stuck.more, ptr %simt.stuck.slot
  %simt.verdict = call i64 %simt.wait(i64 %simt.stuck.more)
  switch i64 %simt.verdict, label %simt.interrupted [ i64 0, label %simt.sweep i64 1, label %simt.dead ]
simt.interrupted:
  store atomic i64 -1, ptr %simt.activity seq_cst, align 8
  br label %simt.end
simt.dead:
  store atomic i64 -1, ptr %simt.activity seq_cst, align 8
  call void @simt.find(ptr %simt.table, i64 %simt.live, ptr %simt.where)
  br label %simt.end
simt.failed:
  store atomic i64 -1, ptr %simt.activity seq_cst, align 8
  call void @simt.where.grid(ptr %simt.turn.block, ptr %simt.where)
  %simt.status.at = getelementptr inbounds %simt.block, ptr %simt.turn.block, i32 0, i32 2, i32 0
  %simt.failure = load i32, ptr %simt.status.at
  br label %simt.end
simt.exhausted:
  store atomic i64 -1, ptr %simt.activity seq_cst, align 8
  br label %simt.end
simt.stopped:
  %simt.ending = phi i32 [ %simt.code, %simt.sweep ], [ ${stopped}, %simt.observe ]
  br label %simt.end
simt.leave:
  call void @simt.activity.add(ptr %simt.activity, i64 -1)
  br label %simt.end
simt.end:
  %simt.status = phi i32 [ ${deadlocked}, %simt.dead ], [ ${interrupted}, %simt.interrupted ], [ %simt.failure, %simt.failed ], [ -1, %simt.exhausted ], [ %simt.ending, %simt.stopped ], [ 0, %simt.leave ]
  %simt.blocks.made = load i64, ptr %simt.made.slot
  br label %simt.free
simt.free:
  %simt.freed = phi i64 [ 0, %simt.end ], [ %simt.freed.next, %simt.give ]
  %simt.gone = icmp eq i64 %simt.freed, %simt.blocks.made
  br i1 %simt.gone, label %simt.return, label %simt.give
simt.give:
  %simt.give.at = getelementptr inbounds ptr, ptr %simt.memories, i64 %simt.freed
  %simt.give.memory = load ptr, ptr %simt.give.at
  call void @free(ptr %simt.give.memory)
  %simt.freed.next = add i64 %simt.freed, 1
  br label %simt.free
simt.return:
  call void @free(ptr %simt.table)
  ret i32 %simt.status
simt.full:
  ret i32 -1
}

declare ptr @malloc(i64)
declare void @free(ptr)
