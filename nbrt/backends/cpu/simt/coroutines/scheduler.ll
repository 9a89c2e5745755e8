; The scheduler of one block. It resumes the threads warp by warp until each has returned or waits at
; the barrier of the grid.

declare void @llvm.coro.resume(ptr)
declare i32 @llvm.cttz.i32(i32, i1 immarg)
declare i32 @llvm.fshr.i32(i32, i32, i32)

; Read the stop word: return 0 to continue, else the status of the ended launch.
define internal i32 @simt.poll(ptr %stop) alwaysinline {
start:
  %word = load atomic i64, ptr %stop monotonic, align 8
  %calm = icmp eq i64 %word, 0
  br i1 %calm, label %on, label %attend
attend:
  %code = call ${attend}(ptr %stop)
  ret i32 %code
on:
  ret i32 0
}

define internal ptr @simt.state(ptr %block, i32 %rank) alwaysinline {
  %warp = lshr i32 %rank, 5
  %lane = and i32 %rank, 31
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 0, i32 %lane
  ret ptr %at
}

; Calls of a thread before it suspends or ends

define internal void @simt.wait(ptr %block, i32 %rank, i32 %state) alwaysinline {
  %at = call ptr @simt.state(ptr %block, i32 %rank)
  store i32 %state, ptr %at
  ret void
}

define internal void @simt.vote(ptr %block, i32 %value) alwaysinline {
  %yes = icmp ne i32 %value, 0
  br i1 %yes, label %for, label %against
for:
  %yes.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 2
  %yes.old = load i32, ptr %yes.at
  %yes.new = add i32 %yes.old, 1
  store i32 %yes.new, ptr %yes.at
  ret void
against:
  %no.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 3
  %no.old = load i32, ptr %no.at
  %no.new = add i32 %no.old, 1
  store i32 %no.new, ptr %no.at
  ret void
}

define internal i32 @simt.voted.count(ptr %block) alwaysinline {
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 4
  %count = load i32, ptr %at
  ret i32 %count
}

define internal i32 @simt.voted.or(ptr %block) alwaysinline {
  %count = call i32 @simt.voted.count(ptr %block)
  %any = icmp ne i32 %count, 0
  %result = zext i1 %any to i32
  ret i32 %result
}

define internal i32 @simt.voted.and(ptr %block) alwaysinline {
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 5
  %count = load i32, ptr %at
  %all = icmp eq i32 %count, 0
  %result = zext i1 %all to i32
  ret i32 %result
}

define internal void @simt.exit(ptr %block, i32 %rank, i32 %status) alwaysinline {
  call void @simt.wait(ptr %block, i32 %rank, i32 0)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %end, label %failed
failed:
  %status.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 0
  store i32 %status, ptr %status.at
  %rank.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 1
  store i32 %rank, ptr %rank.at
  br label %end
end:
  ret void
}

; Return the lanes of a warp that wait for an operation of one kind.

define internal i32 @simt.waiting(ptr %block, i32 %warp, i32 %kind) alwaysinline {
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 0
  %states = load <32 x i32>, ptr %at, align 64
  %kinds = and <32 x i32> %states, splat (i32 255)
  %one = insertelement <32 x i32> poison, i32 %kind, i32 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i32> %kinds, %all
  %lanes = bitcast <32 x i1> %same to i32
  ret i32 %lanes
}

; Select one of the bits: the lowest, or a pseudo-random one if the order is seeded.
define internal i32 @simt.pick(ptr %block, i32 %bits) alwaysinline {
  br i1 ${seeded}, label %any, label %lowest
lowest:
  %first = call i32 @llvm.cttz.i32(i32 %bits, i1 true)
  ret i32 %first
any:
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 7
  %old = load i64, ptr %at
  %product = mul i64 %old, 6364136223846793005
  %new = add i64 %product, 1442695040888963407
  store i64 %new, ptr %at
  %high = lshr i64 %new, 59
  %turn = trunc i64 %high to i32
  %turned = call i32 @llvm.fshr.i32(i32 %bits, i32 %bits, i32 %turn)
  %distance = call i32 @llvm.cttz.i32(i32 %turned, i1 true)
  %sum = add i32 %distance, %turn
  %chosen = and i32 %sum, 31
  ret i32 %chosen
}

; Resume the lanes of a warp from a barrier until none can run; return the lanes at the next barrier.
define internal i32 @simt.warp.run(ptr %block, i32 %warp) {
start:
  %status.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 0
  %base = shl i32 %warp, 5
  %begin = call i32 @simt.waiting(ptr %block, i32 %warp, i32 1)
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
  br i1 %fine, label %resumed, label %failed
resumed:
  %bit = shl i32 1, %lane
  %fewer = xor i32 %left, %bit
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %resolve, label %next
resolve:
  %released = call i32 @simt.warp.resolve(ptr %block, i32 %warp)
  br label %pass
end:
  %waiting = call i32 @simt.waiting(ptr %block, i32 %warp, i32 1)
  ret i32 %waiting
failed:
  ret i32 0
}

define internal i32 @simt.block.run(ptr %block) {
start:
  %status.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 0
  %arrived.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 2
  %passed.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 4
  %stop.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 3, i32 ${stop_field}
  %stop = load ptr, ptr %stop.at
  br label %phase
phase:
  %code = call i32 @simt.poll(ptr %stop)
  %going = icmp eq i32 %code, 0
  br i1 %going, label %sweep, label %stopped
sweep:
  br label %next
next:
  %left = phi i32 [ ${every_warp}, %sweep ], [ %fewer, %ran ]
  %before = phi i32 [ 0, %sweep ], [ %waiting, %ran ]
  %warp = call i32 @simt.pick(ptr %block, i32 %left)
  %lanes = call i32 @simt.warp.run(ptr %block, i32 %warp)
  %status = load i32, ptr %status.at
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %ran, label %end
ran:
  %waiting = or i32 %before, %lanes
  %bit = shl i32 1, %warp
  %fewer = xor i32 %left, %bit
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %together, label %next
together:
  %done = icmp eq i32 %waiting, 0
  br i1 %done, label %end, label %barrier
barrier:
  %votes = load <2 x i32>, ptr %arrived.at, align 4
  store <2 x i32> %votes, ptr %passed.at, align 4
  store <2 x i32> zeroinitializer, ptr %arrived.at, align 4
  br label %phase
stopped:
  store i32 %code, ptr %status.at
  br label %end
end:
  %result = phi i32 [ %status, %next ], [ 0, %together ], [ %code, %stopped ]
  ret i32 %result
}

; The offset of the first frame of a block, and the distance between frames: an odd number of cache
; lines, which spreads the frames over all sets of the cache.

define internal i64 @simt.header() alwaysinline {
  %size = ptrtoint ptr getelementptr (%simt.block, ptr null, i32 1) to i64
  %more = add i64 %size, 63
  %whole = and i64 %more, -64
  ret i64 %whole
}

define internal i64 @simt.distance() alwaysinline {
  %size = call i64 @simt.thread(ptr null, i32 0, ptr null)
  %more = add i64 %size, 63
  %whole = and i64 %more, -64
  %odd = or i64 %whole, 64
  ret i64 %odd
}

define internal i64 @simt.block.bytes() alwaysinline {
  %header = call i64 @simt.header()
  %distance = call i64 @simt.distance()
  %frames = mul i64 %distance, ${threads}
  %sum = add i64 %header, %frames
  %more = add i64 %sum, ${above}
  %bytes = and i64 %more, -${alignment}
  ret i64 %bytes
}

define internal ptr @simt.aligned(ptr %memory) alwaysinline {
  %address = ptrtoint ptr %memory to i64
  %more = add i64 %address, ${above}
  %even = and i64 %more, -${alignment}
  %step = sub i64 %even, %address
  %aligned = getelementptr inbounds i8, ptr %memory, i64 %step
  ret ptr %aligned
}

; Create the threads of a block, suspended; the record holds its arguments.
define internal void @simt.block.start(ptr %block, i64 %number, i64 %seed) {
start:
  %header = call i64 @simt.header()
  %distance = call i64 @simt.distance()
  %frames = getelementptr inbounds i8, ptr %block, i64 %header
  %mixed.0 = mul i64 %number, -7046029254386353131
  %mixed.1 = add i64 %mixed.0, %seed
  %mixed.2 = lshr i64 %mixed.1, 32
  %mixed.3 = xor i64 %mixed.1, %mixed.2
  %mixed = mul i64 %mixed.3, -4658895280553007687
  %control.0 = insertvalue %simt.control zeroinitializer, i64 %number, 6
  %control.1 = insertvalue %simt.control %control.0, i64 %mixed, 7
  %control.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2
  store %simt.control %control.1, ptr %control.at
  %last.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 ${last_warp}, i32 0
  store <32 x i32> zeroinitializer, ptr %last.at, align 64
  br label %next
next:
  %rank = phi i32 [ 0, %start ], [ %following, %next ]
  %rank.wide = zext i32 %rank to i64
  %offset = mul i64 %rank.wide, %distance
  %frame = getelementptr inbounds i8, ptr %frames, i64 %offset
  call void @simt.wait(ptr %block, i32 %rank, i32 ${begin})
  %size = call i64 @simt.thread(ptr %block, i32 %rank, ptr %frame)
  %following = add nuw nsw i32 %rank, 1
  %last = icmp eq i32 %following, ${threads}
  br i1 %last, label %end, label %next
end:
  ret void
}

; Store the threadIdx of the thread that failed.
define internal void @simt.where(ptr %block, ptr %where) {
  %rank.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 1
  %rank = load i32, ptr %rank.at
  %x = urem i32 %rank, ${width}
  %row = udiv i32 %rank, ${width}
  %y = urem i32 %row, ${height}
  %z = udiv i32 %row, ${height}
  store i32 %x, ptr %where
  %y.at = getelementptr inbounds i32, ptr %where, i64 1
  store i32 %y, ptr %y.at
  %z.at = getelementptr inbounds i32, ptr %where, i64 2
  store i32 %z, ptr %z.at
  ret void
}
