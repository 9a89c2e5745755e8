; The loop of a replay. The structures are those of layout.py.

%instruction = type { i64, i64, i64, i64, i64, i64, i64, i64, [3 x i64], i64, i64, i64, i64, i64 }

declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare void @Py_DecRef(ptr)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Run the instructions from %begin to %end, without the GIL.
define i64 @nbrt_graph_run(ptr %image, ptr %thread, i64 %begin, i64 %end) {
  %python = call ptr @PyEval_SaveThread()
  %status = call i64 @run(ptr %image, ptr %thread, i64 %begin, i64 %end)
  call void @PyEval_RestoreThread(ptr %python)
  ret i64 %status
}

; Run chains until none is left, without the GIL.
define i64 @nbrt_graph_run_chains(ptr %image, ptr %thread, ptr %table) {
  %python = call ptr @PyEval_SaveThread()
  %status = call i64 @run.chains(ptr %image, ptr %thread, ptr %table)
  call void @PyEval_RestoreThread(ptr %python)
  ret i64 %status
}

define internal i64 @element(ptr %at, i64 %size) alwaysinline {
start:
  switch i64 %size, label %eight [
    i64 1, label %one
    i64 2, label %two
    i64 4, label %four
    i64 -1, label %one.signed
    i64 -2, label %two.signed
    i64 -4, label %four.signed
  ]
one:
  %byte = load i8, ptr %at, align 1
  %byte.u = zext i8 %byte to i64
  ret i64 %byte.u
two:
  %half = load i16, ptr %at, align 1
  %half.u = zext i16 %half to i64
  ret i64 %half.u
four:
  %word = load i32, ptr %at, align 1
  %word.u = zext i32 %word to i64
  ret i64 %word.u
one.signed:
  %byte.2 = load i8, ptr %at, align 1
  %byte.s = sext i8 %byte.2 to i64
  ret i64 %byte.s
two.signed:
  %half.2 = load i16, ptr %at, align 1
  %half.s = sext i16 %half.2 to i64
  ret i64 %half.s
four.signed:
  %word.2 = load i32, ptr %at, align 1
  %word.s = sext i32 %word.2 to i64
  ret i64 %word.s
eight:
  %long = load i64, ptr %at, align 1
  ret i64 %long
}

; Repeat %unit bytes over %size bytes.
define internal void @fill(ptr %target, ptr %source, i64 %unit, i64 %size) {
start:
  br label %next
next:
  %done = phi i64 [ 0, %start ], [ %more, %copy ]
  %left = sub i64 %size, %done
  %empty = icmp sle i64 %left, 0
  br i1 %empty, label %end, label %copy
copy:
  %last = icmp slt i64 %left, %unit
  %count = select i1 %last, i64 %left, i64 %unit
  %at = getelementptr i8, ptr %target, i64 %done
  call void @llvm.memcpy.p0.p0.i64(ptr %at, ptr %source, i64 %count, i1 false)
  %more = add i64 %done, %unit
  br label %next
end:
  ret void
}

define internal i64 @run(ptr %image, ptr %thread, i64 %begin, i64 %end) {
start:
  %instructions = load ptr, ptr %image
  %callback.at = getelementptr i8, ptr %image, i64 ${callback}
  %callback = load ptr, ptr %callback.at
  %stop.at = getelementptr i8, ptr %thread, i64 ${record_stop}
  %shared.at = getelementptr i8, ptr %thread, i64 ${record_shared}
  %error.at = getelementptr i8, ptr %thread, i64 ${error}
  %code.at = getelementptr i8, ptr %thread, i64 ${code}
  %failed.at = getelementptr i8, ptr %thread, i64 ${failed_at}
  br label %loop

loop:
  %pc = phi i64 [ %begin, %start ], [ %following, %next ], [ %chosen, %jump ]
  %is.end = icmp eq i64 %pc, %end
  br i1 %is.end, label %done, label %poll
poll:
  %word = load atomic i64, ptr %stop.at monotonic, align 8
  %runs = icmp eq i64 %word, 0
  br i1 %runs, label %execute, label %attend
attend:
  %answer = call ${convention} i32 @${attend}(ptr %stop.at)
  switch i32 %answer, label %interrupted [ i32 0, label %execute i32 ${stopped_code}, label %stopped ]
execute:
  %at = getelementptr %instruction, ptr %instructions, i64 %pc
  %operation = load i64, ptr %at
  %next.at = getelementptr %instruction, ptr %at, i64 0, i32 1
  %following = load i64, ptr %next.at
  %target.at = getelementptr %instruction, ptr %at, i64 0, i32 2
  %target = load ptr, ptr %target.at
  %source.at = getelementptr %instruction, ptr %at, i64 0, i32 3
  %source = load ptr, ptr %source.at
  %a.at = getelementptr %instruction, ptr %at, i64 0, i32 4
  %a = load i64, ptr %a.at
  %b.at = getelementptr %instruction, ptr %at, i64 0, i32 5
  %b = load i64, ptr %b.at
  switch i64 %operation, label %next [
    i64 ${LAUNCH}, label %launch
    i64 ${TIMED}, label %timed
    i64 ${COPY}, label %copy
    i64 ${FILL}, label %fill
    i64 ${CALL}, label %call
    i64 ${TEST}, label %test
    i64 ${LOOP}, label %counter
    i64 ${TURN}, label %turn
    i64 ${SELECT}, label %select
    i64 ${ADVANCE}, label %advance
    i64 ${SHARED}, label %shared
  ]

launch:
  %launched = call i32 @launch(ptr %at, ptr %thread, ptr %shared.at, ptr %error.at)
  br label %check
check:
  %code = phi i32 [ %launched, %launch ], [ %timed.code, %timed.end ], [ %shared.code, %shared.end ]
  switch i32 %code, label %kernel [ i32 0, label %next i32 ${none_code}, label %next ]
kernel:
  %code.long = sext i32 %code to i64
  store i64 %code.long, ptr %code.at
  br label %failed
timed:
  %clock.begin = call i64 @clock()
  %timed.code = call i32 @launch(ptr %at, ptr %thread, ptr %shared.at, ptr %error.at)
  %clock.end = call i64 @clock()
  %elapsed = sub i64 %clock.end, %clock.begin
  %limit.at = getelementptr i8, ptr %image, i64 ${max_short_ns}
  %limit = load i64, ptr %limit.at
  %long = icmp sgt i64 %elapsed, %limit
  br i1 %long, label %promote, label %timed.end
promote:
  store i64 ${CALL}, ptr %at
  br label %timed.end
timed.end:
  br label %check
shared:
  %shared.begin.ns = call i64 @clock()
  %shared.code = call i32 @launch.shared(ptr %image, ptr %at, ptr %thread, ptr %shared.at, ptr %error.at)
  %shared.end.ns = call i64 @clock()
  %shared.ns = sub i64 %shared.end.ns, %shared.begin.ns
  %helpers.at = getelementptr i8, ptr %image, i64 ${slot_count}
  %helpers = load i64, ptr %helpers.at
  %threads = add i64 %helpers, 1
  %work.ns = mul i64 %shared.ns, %threads
  %short.at = getelementptr i8, ptr %image, i64 ${max_short_ns}
  %short.ns = load i64, ptr %short.at
  %is.short = icmp slt i64 %work.ns, %short.ns
  br i1 %is.short, label %demote, label %shared.end
demote:
  store i64 ${CALL}, ptr %at
  br label %shared.end
shared.end:
  br label %check

copy:
  call void @llvm.memmove.p0.p0.i64(ptr %target, ptr %source, i64 %b, i1 false)
  br label %next
fill:
  call void @fill(ptr %target, ptr %source, i64 %a, i64 %b)
  br label %next

; Not by a callback of ctypes, which drops exceptions: that of a signal handler can arrive in any
; Python code. The exception stays set in this thread.
call:
  %gil = call i32 @PyGILState_Ensure()
  %number = call ptr @PyLong_FromLongLong(i64 %pc)
  %result = call ptr @PyObject_CallOneArg(ptr %callback, ptr %number)
  call void @Py_DecRef(ptr %number)
  call void @Py_DecRef(ptr %result)
  call void @PyGILState_Release(i32 %gil)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %failed, label %next

test:
  %tested = call i64 @element(ptr %target, i64 %a)
  %is.false = icmp eq i64 %tested, 0
  %where = select i1 %is.false, i64 %b, i64 %following
  br label %jump
counter:
  store i64 0, ptr %source
  br label %next
turn:
  %flag = call i64 @element(ptr %target, i64 %a)
  %leaves = icmp eq i64 %flag, 0
  br i1 %leaves, label %leave, label %count
leave:
  br label %jump
count:
  %turns = load i64, ptr %source
  %turns.next = add i64 %turns, 1
  store i64 %turns.next, ptr %source
  %most.at = getelementptr %instruction, ptr %at, i64 0, i32 6
  %most = load i64, ptr %most.at
  %over = icmp sge i64 %turns, %most
  br i1 %over, label %failed, label %next
select:
  %index = call i64 @element(ptr %target, i64 %a)
  %known = icmp ult i64 %index, %b
  br i1 %known, label %selected, label %next
selected:
  %entry.at = getelementptr i64, ptr %source, i64 %index
  %branch = load i64, ptr %entry.at
  br label %jump
advance:
  %offset = load i64, ptr %target
  %advanced = add i64 %offset, %b
  store i64 %advanced, ptr %target
  br label %next

jump:
  %chosen = phi i64 [ %where, %test ], [ %b, %leave ], [ %branch, %selected ]
  br label %loop
next:
  br label %loop

failed:
  %status = phi i64 [ ${KERNEL_STATUS}, %kernel ], [ ${PYTHON_STATUS}, %call ], [ ${LIMIT_STATUS}, %count ]
  store i64 %pc, ptr %failed.at
  ret i64 %status
stopped:
  ret i64 ${STOPPED_STATUS}
interrupted:
  ret i64 ${INTERRUPTED_STATUS}
done:
  ret i64 0
}

; Call the entry of a kernel: its grid goes into the record of the thread.
define internal i32 @launch(ptr %at, ptr %thread, ptr %shared.at, ptr %error.at) alwaysinline {
  %grid.at = getelementptr %instruction, ptr %at, i64 0, i32 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %thread, ptr align 8 %grid.at, i64 32, i1 false)
  %bytes.at = getelementptr %instruction, ptr %at, i64 0, i32 7
  %bytes = load i64, ptr %bytes.at
  store i64 %bytes, ptr %shared.at
  %arguments.at = getelementptr %instruction, ptr %at, i64 0, i32 3
  %arguments = load ptr, ptr %arguments.at
  %entry.at = getelementptr %instruction, ptr %at, i64 0, i32 10
  %entry = load ptr, ptr %entry.at
  %trampoline.at = getelementptr %instruction, ptr %at, i64 0, i32 11
  %trampoline = load ptr, ptr %trampoline.at
  %record = ptrtoint ptr %thread to i64
  %code = call i32 %trampoline(ptr %entry, ptr %error.at, i64 %record, ptr %arguments)
  ret i32 %code
}

; Claim the chains that are ready, one after the other. A thread that finds none waits: a chain that
; runs elsewhere makes others ready, or fails.
define internal i64 @run.chains(ptr %image, ptr %thread, ptr %table) {
start:
  %head.at = getelementptr i8, ptr %table, i64 ${head}
  %tail.at = getelementptr i8, ptr %table, i64 ${tail}
  %failed.at = getelementptr i8, ptr %table, i64 ${failed}
  %ready.slot = getelementptr i8, ptr %table, i64 ${ready}
  %ready = load ptr, ptr %ready.slot
  %begins.slot = getelementptr i8, ptr %table, i64 ${begins}
  %begins = load ptr, ptr %begins.slot
  %ends.slot = getelementptr i8, ptr %table, i64 ${ends}
  %ends = load ptr, ptr %ends.slot
  %remaining.slot = getelementptr i8, ptr %table, i64 ${remaining}
  %remaining = load ptr, ptr %remaining.slot
  %elapsed.slot = getelementptr i8, ptr %table, i64 ${elapsed}
  %elapsed = load ptr, ptr %elapsed.slot
  %first.slot = getelementptr i8, ptr %table, i64 ${follower_begins}
  %firsts = load ptr, ptr %first.slot
  %followers.slot = getelementptr i8, ptr %table, i64 ${followers}
  %followers = load ptr, ptr %followers.slot
  %stop.at = getelementptr i8, ptr %thread, i64 ${record_stop}
  %count = load i64, ptr %table
  br label %claim

claim:
  %spins = phi i64 [ 0, %start ], [ %spun, %pause ], [ %spins, %seize ], [ 0, %followed ]
  %failed = load atomic i64, ptr %failed.at acquire, align 8
  %is.fine = icmp eq i64 %failed, 0
  br i1 %is.fine, label %poll, label %done
poll:
  %word = load atomic i64, ptr %stop.at monotonic, align 8
  %runs = icmp eq i64 %word, 0
  br i1 %runs, label %look, label %attend
attend:
  %answer = call ${convention} i32 @${attend}(ptr %stop.at)
  switch i32 %answer, label %interrupted [ i32 0, label %look i32 ${stopped_code}, label %stopped ]
look:
  %head = load atomic i64, ptr %head.at monotonic, align 8
  %none = icmp sge i64 %head, %count
  br i1 %none, label %done, label %peek
peek:
  %ready.at = getelementptr i64, ptr %ready, i64 %head
  %number = load atomic i64, ptr %ready.at acquire, align 8
  %is.empty = icmp eq i64 %number, 0
  br i1 %is.empty, label %idle, label %seize
idle:
  %spun = add i64 %spins, 1
  %sleeps = icmp sgt i64 %spun, 2000
  br i1 %sleeps, label %sleep, label %pause
sleep:
  call void @wait()
  br label %pause
pause:
  br label %claim
seize:
  %head.next = add i64 %head, 1
  %pair = cmpxchg ptr %head.at, i64 %head, i64 %head.next monotonic monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %work, label %claim

work:
  %chain = sub i64 %number, 1
  %begin.at = getelementptr i64, ptr %begins, i64 %chain
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i64, ptr %ends, i64 %chain
  %end = load i64, ptr %end.at
  %clock.begin = call i64 @clock()
  %status = call i64 @run(ptr %image, ptr %thread, i64 %begin, i64 %end)
  %clock.end = call i64 @clock()
  %time = sub i64 %clock.end, %clock.begin
  %elapsed.at = getelementptr i64, ptr %elapsed, i64 %chain
  store i64 %time, ptr %elapsed.at
  %is.done = icmp eq i64 %status, 0
  br i1 %is.done, label %release, label %fail
release:
  %first.at = getelementptr i64, ptr %firsts, i64 %chain
  %first = load i64, ptr %first.at
  %last.at = getelementptr i64, ptr %first.at, i64 1
  %last = load i64, ptr %last.at
  br label %follow
follow:
  %position = phi i64 [ %first, %release ], [ %position.next, %followed.one ]
  %all = icmp sge i64 %position, %last
  br i1 %all, label %followed, label %decrement
decrement:
  %follower.at = getelementptr i64, ptr %followers, i64 %position
  %follower = load i64, ptr %follower.at
  %left.at = getelementptr i64, ptr %remaining, i64 %follower
  %before = atomicrmw sub ptr %left.at, i64 1 acq_rel
  %is.ready = icmp eq i64 %before, 1
  br i1 %is.ready, label %push, label %followed.one
push:
  %slot = atomicrmw add ptr %tail.at, i64 1 monotonic
  %slot.at = getelementptr i64, ptr %ready, i64 %slot
  %name = add i64 %follower, 1
  store atomic i64 %name, ptr %slot.at release, align 8
  br label %followed.one
followed.one:
  %position.next = add i64 %position, 1
  br label %follow
followed:
  br label %claim

fail:
  store atomic i64 1, ptr %failed.at release, align 8
  ret i64 %status
stopped:
  store atomic i64 1, ptr %failed.at release, align 8
  ret i64 ${STOPPED_STATUS}
interrupted:
  store atomic i64 1, ptr %failed.at release, align 8
  ret i64 ${INTERRUPTED_STATUS}
done:
  ret i64 0
}

${platform}
${attend_module}
