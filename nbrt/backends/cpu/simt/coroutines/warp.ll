; Warp operations. Lanes that wait at the same operation with the same mask are a group. A group is
; complete when it holds every lane of its mask that has not returned; its results are then computed
; for 32 lanes at once.

declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)
declare <32 x i64> @llvm.masked.gather.v32i64.v32p0(<32 x ptr>, i32 immarg, <32 x i1>, <32 x i64>)
declare void @llvm.masked.store.v32i64.p0(<32 x i64>, ptr, i32 immarg, <32 x i1>)

define internal <32 x i32> @simt.splat(i32 %value) alwaysinline {
  %one = insertelement <32 x i32> poison, i32 %value, i32 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  ret <32 x i32> %all
}

define internal <32 x i64> @simt.answer(i32 %value) alwaysinline {
  %all = call <32 x i32> @simt.splat(i32 %value)
  %wide = zext <32 x i32> %all to <32 x i64>
  ret <32 x i64> %wide
}

; Calls of a thread before and after it suspends

define internal void @simt.ask(ptr %block, i32 %rank, i32 %state, i32 %mask, i64 %value, i32 %source) alwaysinline {
  %warp = lshr i32 %rank, 5
  %lane = and i32 %rank, 31
  %record = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp
  %state.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 0, i32 %lane
  store i32 %state, ptr %state.at
  %mask.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 1, i32 %lane
  store i32 %mask, ptr %mask.at
  %source.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 2, i32 %lane
  store i32 %source, ptr %source.at
  %value.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 3, i32 %lane
  store i64 %value, ptr %value.at
  ret void
}

define internal i64 @simt.answered(ptr %block, i32 %rank) alwaysinline {
  %warp = lshr i32 %rank, 5
  %lane = and i32 %rank, 31
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 4, i32 %lane
  %answer = load i64, ptr %at
  ret i64 %answer
}

; Shuffles. A source outside of the warp or the group selects the lane's own value.

define internal <32 x i64> @simt.shuffle(ptr %record, i32 %group, <32 x i32> %source) alwaysinline {
  %inside = icmp ult <32 x i32> %source, splat (i32 32)
  %distance = and <32 x i32> %source, splat (i32 31)
  %members = call <32 x i32> @simt.splat(i32 %group)
  %shifted = lshr <32 x i32> %members, %distance
  %member = trunc <32 x i32> %shifted to <32 x i1>
  %takes = and <32 x i1> %inside, %member
  %from = select <32 x i1> %takes, <32 x i32> %source, <32 x i32> ${lanes}
  %values = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 3
  %addresses = getelementptr inbounds i64, ptr %values, <32 x i32> %from
  %result = call <32 x i64> @llvm.masked.gather.v32i64.v32p0(<32 x ptr> %addresses, i32 8, <32 x i1> splat (i1 true), <32 x i64> poison)
  ret <32 x i64> %result
}

define internal <32 x i32> @simt.distances(ptr %record) alwaysinline {
  %at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 2
  %all = load <32 x i32>, ptr %at, align 64
  %low = and <32 x i32> %all, splat (i32 31)
  ret <32 x i32> %low
}

define internal <32 x i64> @simt.shfl.idx(ptr %record, i32 %group) alwaysinline {
  %source = call <32 x i32> @simt.distances(ptr %record)
  %result = call <32 x i64> @simt.shuffle(ptr %record, i32 %group, <32 x i32> %source)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.shfl.up(ptr %record, i32 %group) alwaysinline {
  %by = call <32 x i32> @simt.distances(ptr %record)
  %source = sub <32 x i32> ${lanes}, %by
  %result = call <32 x i64> @simt.shuffle(ptr %record, i32 %group, <32 x i32> %source)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.shfl.down(ptr %record, i32 %group) alwaysinline {
  %by = call <32 x i32> @simt.distances(ptr %record)
  %source = add <32 x i32> ${lanes}, %by
  %result = call <32 x i64> @simt.shuffle(ptr %record, i32 %group, <32 x i32> %source)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.shfl.xor(ptr %record, i32 %group) alwaysinline {
  %by = call <32 x i32> @simt.distances(ptr %record)
  %source = xor <32 x i32> ${lanes}, %by
  %result = call <32 x i64> @simt.shuffle(ptr %record, i32 %group, <32 x i32> %source)
  ret <32 x i64> %result
}

; Votes

define internal i32 @simt.ballot(ptr %record, i32 %group) alwaysinline {
  %at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 3
  %values = load <32 x i64>, ptr %at, align 64
  %yes = icmp ne <32 x i64> %values, zeroinitializer
  %bits = bitcast <32 x i1> %yes to i32
  %votes = and i32 %bits, %group
  ret i32 %votes
}

define internal <32 x i64> @simt.vote.ballot(ptr %record, i32 %group) alwaysinline {
  %votes = call i32 @simt.ballot(ptr %record, i32 %group)
  %result = call <32 x i64> @simt.answer(i32 %votes)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.vote.any(ptr %record, i32 %group) alwaysinline {
  %votes = call i32 @simt.ballot(ptr %record, i32 %group)
  %any = icmp ne i32 %votes, 0
  %number = zext i1 %any to i32
  %result = call <32 x i64> @simt.answer(i32 %number)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.vote.all(ptr %record, i32 %group) alwaysinline {
  %votes = call i32 @simt.ballot(ptr %record, i32 %group)
  %all = icmp eq i32 %votes, %group
  %number = zext i1 %all to i32
  %result = call <32 x i64> @simt.answer(i32 %number)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.vote.eq(ptr %record, i32 %group) alwaysinline {
  %votes = call i32 @simt.ballot(ptr %record, i32 %group)
  %all = icmp eq i32 %votes, %group
  %none = icmp eq i32 %votes, 0
  %same = or i1 %all, %none
  %number = zext i1 %same to i32
  %result = call <32 x i64> @simt.answer(i32 %number)
  ret <32 x i64> %result
}

; Matches

define internal i32 @simt.matching(ptr %record, i32 %group, i32 %lane) alwaysinline {
  %at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 3
  %values = load <32 x i64>, ptr %at, align 64
  %value.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 3, i32 %lane
  %value = load i64, ptr %value.at
  %one = insertelement <32 x i64> poison, i64 %value, i32 0
  %all = shufflevector <32 x i64> %one, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %values, %all
  %bits = bitcast <32 x i1> %same to i32
  %lanes = and i32 %bits, %group
  ret i32 %lanes
}

define internal <32 x i64> @simt.match.any(ptr %record, i32 %group) {
start:
  br label %next
next:
  %left = phi i32 [ %group, %start ], [ %fewer, %next ]
  %before = phi <32 x i64> [ zeroinitializer, %start ], [ %after, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %same = call i32 @simt.matching(ptr %record, i32 %group, i32 %lane)
  %chosen = bitcast i32 %same to <32 x i1>
  %answer = call <32 x i64> @simt.answer(i32 %same)
  %after = select <32 x i1> %chosen, <32 x i64> %answer, <32 x i64> %before
  %fewer = xor i32 %left, %same
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %end, label %next
end:
  ret <32 x i64> %after
}

define internal <32 x i64> @simt.match.all(ptr %record, i32 %group) alwaysinline {
  %lane = call i32 @llvm.cttz.i32(i32 %group, i1 true)
  %same = call i32 @simt.matching(ptr %record, i32 %group, i32 %lane)
  %all = icmp eq i32 %same, %group
  %number = select i1 %all, i32 %group, i32 0
  %result = call <32 x i64> @simt.answer(i32 %number)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.activemask(ptr %record, i32 %group) alwaysinline {
  %result = call <32 x i64> @simt.answer(i32 %group)
  ret <32 x i64> %result
}

define internal <32 x i64> @simt.warp.sync(ptr %record, i32 %group) alwaysinline {
  ret <32 x i64> zeroinitializer
}

; Compute the results of a group, whose lanes wait for an operation of one kind.
define internal void @simt.warp.answer(ptr %record, i32 %kind, i32 %group) {
start:
  switch i32 %kind, label %none [
${cases}
  ]
none:
  unreachable
${operations}
store:
  %result = phi <32 x i64> ${results}
  %members = bitcast i32 %group to <32 x i1>
  %at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 4
  call void @llvm.masked.store.v32i64.p0(<32 x i64> %result, ptr %at, i32 64, <32 x i1> %members)
  ret void
}

; Return the lanes among %candidates that wait at the operation of %lane with its mask.
define internal i32 @simt.warp.group(ptr %record, i32 %lane, i32 %candidates) alwaysinline {
  %state.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 0, i32 %lane
  %state = load i32, ptr %state.at
  %mask.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 1, i32 %lane
  %mask = load i32, ptr %mask.at
  %kind = and i32 %state, 255
  %states = load <32 x i32>, ptr %record, align 64
  %kinds = and <32 x i32> %states, splat (i32 255)
  %kind.all = call <32 x i32> @simt.splat(i32 %kind)
  %kind.same = icmp eq <32 x i32> %kinds, %kind.all
  %masks.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 1
  %masks = load <32 x i32>, ptr %masks.at, align 64
  %mask.all = call <32 x i32> @simt.splat(i32 %mask)
  %mask.same = icmp eq <32 x i32> %masks, %mask.all
  %same = and <32 x i1> %kind.same, %mask.same
  %lanes = bitcast <32 x i1> %same to i32
  %group = and i32 %lanes, %candidates
  ret i32 %group
}

; No lane of a warp can run: compute the results of complete groups; return the lanes that can run.
define internal i32 @simt.warp.resolve(ptr %block, i32 %warp) {
start:
  %record = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp
  %states = load <32 x i32>, ptr %record, align 64
  %alive = icmp ne <32 x i32> %states, zeroinitializer
  %live = bitcast <32 x i1> %alive to i32
  %kinds = and <32 x i32> %states, splat (i32 255)
  %asks = icmp ugt <32 x i32> %kinds, splat (i32 3)
  %asking = bitcast <32 x i1> %asks to i32
  %idle = icmp eq i32 %asking, 0
  br i1 %idle, label %end, label %next
next:
  %left = phi i32 [ %asking, %start ], [ %fewer, %decided ]
  %before = phi i32 [ 0, %start ], [ %after, %decided ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %group = call i32 @simt.warp.group(ptr %record, i32 %lane, i32 %asking)
  %state.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 0, i32 %lane
  %state = load i32, ptr %state.at
  %kind = and i32 %state, 255
  %mask.at = getelementptr inbounds %simt.warp, ptr %record, i32 0, i32 1, i32 %lane
  %mask = load i32, ptr %mask.at
  %wanted = and i32 %mask, %live
  %outside = xor i32 %group, -1
  %missing = and i32 %wanted, %outside
  %whole = icmp eq i32 %missing, 0
  %masked = icmp ne i32 %kind, ${activemask}
  %complete = and i1 %whole, %masked
  br i1 %complete, label %answer, label %decided
answer:
  call void @simt.warp.answer(ptr %record, i32 %kind, i32 %group)
  br label %decided
decided:
  %released = phi i32 [ 0, %next ], [ %group, %answer ]
  %after = or i32 %before, %released
  %fewer = and i32 %left, %outside
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %tried, label %next
tried:
  %moves = icmp ne i32 %after, 0
  br i1 %moves, label %end, label %stuck
stuck:
  %lenient = call i32 @simt.warp.unstick(ptr %record, i32 %warp, i32 %asking)
  br label %end
end:
  %result = phi i32 [ 0, %start ], [ %after, %tried ], [ %lenient, %stuck ]
  ret i32 %result
}

; No group is complete: release lanes without the missing ones, so that a warp never hangs. Lanes at
; an activemask are first, then those at the first site in the order of the code. A lane that has
; yielded may still arrive.
define internal i32 @simt.warp.unstick(ptr %record, i32 %warp, i32 %asking) {
start:
  %states = load <32 x i32>, ptr %record, align 64
  %kinds = and <32 x i32> %states, splat (i32 255)
  %unmasked = icmp eq <32 x i32> %kinds, splat (i32 ${activemask})
  %later = or <32 x i32> %states, splat (i32 -2147483648)
  %order = select <32 x i1> %unmasked, <32 x i32> %states, <32 x i32> %later
  %waits = bitcast i32 %asking to <32 x i1>
  %ranked = select <32 x i1> %waits, <32 x i32> %order, <32 x i32> splat (i32 -1)
  %least = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %ranked)
  %least.all = call <32 x i32> @simt.splat(i32 %least)
  %first = icmp eq <32 x i32> %ranked, %least.all
  %site = bitcast <32 x i1> %first to i32
  %state = and i32 %least, 2147483647
  %kind = and i32 %state, 255
  %masked = icmp ne i32 %kind, ${activemask}
  br i1 %masked, label %incomplete, label %answer
incomplete:
  %yields = icmp eq <32 x i32> %kinds, splat (i32 3)
  %yielding = bitcast <32 x i1> %yields to i32
  %coming = icmp ne i32 %yielding, 0
  br i1 %coming, label %later.on, label %alone
later.on:
  ret i32 0
alone:
  %lane = call i32 @llvm.cttz.i32(i32 %site, i1 true)
  %same = call i32 @simt.warp.group(ptr %record, i32 %lane, i32 %asking)
  br label %answer
answer:
  %group = phi i32 [ %site, %start ], [ %same, %alone ]
  call void @simt.warp.answer(ptr %record, i32 %kind, i32 %group)
  ret i32 %group
}
