; Launches that several threads share. A helper thread sleeps until its slot has a token: the address
; of the `ThreadState` that offers a launch, plus 1. A slot that is 0 is idle; 2 runs a launch.

declare i32 @PyThread_acquire_lock(ptr, i32)
declare i32 @PyThread_acquire_lock_timed(ptr, i64, i32)
declare void @PyThread_release_lock(ptr)

; Take part in launches, without the GIL, until one fails in this thread.
define i64 @nbrt_graph_help(ptr %slot) {
start:
  %wake.at = getelementptr i8, ptr %slot, i64 ${wake}
  %wake = load ptr, ptr %wake.at
  %error.at = getelementptr i8, ptr %slot, i64 ${helper_error}
  %code.at = getelementptr i8, ptr %slot, i64 ${helper_code}
  %offering.at = getelementptr i8, ptr %slot, i64 ${offering}
  %python = call ptr @PyEval_SaveThread()
  br label %sleep
sleep:
  %woken = call i32 @PyThread_acquire_lock(ptr %wake, i32 1)
  %token = load atomic i64, ptr %slot monotonic, align 8
  %odd = and i64 %token, 1
  %is.offer = icmp eq i64 %odd, 1
  br i1 %is.offer, label %claim, label %sleep
claim:
  %pair = cmpxchg ptr %slot, i64 %token, i64 2 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %work, label %sleep
work:
  %address = sub i64 %token, 1
  %thread = inttoptr i64 %address to ptr
  %code = call i32 @share(ptr %thread, ptr %error.at)
  switch i32 %code, label %failed [
    i32 0, label %done
    i32 ${none_code}, label %done
    i32 ${stopped_code}, label %done
  ]
done:
  call void @nbrt_graph_finish(ptr %slot, ptr %thread)
  br label %sleep
failed:
  %code.long = sext i32 %code to i64
  store i64 %code.long, ptr %code.at
  store ptr %thread, ptr %offering.at
  %failed.at = getelementptr i8, ptr %thread, i64 ${helper_failed}
  store atomic i64 1, ptr %failed.at monotonic, align 8
  call void @end.launch(ptr %thread)
  call void @PyEval_RestoreThread(ptr %python)
  ret i64 1
}

; Leave a launch; the last one to leave wakes the caller.
define void @nbrt_graph_finish(ptr %slot, ptr %thread) {
start:
  %done.at = getelementptr i8, ptr %thread, i64 ${done}
  %done = load ptr, ptr %done.at
  %pending.at = getelementptr i8, ptr %thread, i64 ${pending}
  store atomic i64 0, ptr %slot release, align 8
  %before = atomicrmw sub ptr %pending.at, i64 1 acq_rel
  %is.last = icmp eq i64 %before, 1
  br i1 %is.last, label %wake, label %end
wake:
  call void @PyThread_release_lock(ptr %done)
  br label %end
end:
  ret void
}

; Run blocks of the launch that a thread offers until none is left.
define internal i32 @share(ptr %thread, ptr %error.at) alwaysinline {
  %offer.at = getelementptr i8, ptr %thread, i64 ${offer}
  %at = load ptr, ptr %offer.at
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

; End a launch in all threads.
define internal void @end.launch(ptr %thread) {
  %total.at = getelementptr i8, ptr %thread, i64 ${record_total}
  %total = load i64, ptr %total.at
  %next.at = getelementptr i8, ptr %thread, i64 ${record_next}
  %stop.at = getelementptr i8, ptr %thread, i64 ${stop}
  store atomic i64 ${stop_word}, ptr %stop.at monotonic, align 8
  store atomic i64 %total, ptr %next.at monotonic, align 8
  ret void
}

; Launch a kernel in this thread and in the helpers that are idle.
define internal i32 @launch.shared(ptr %image, ptr %at, ptr %thread, ptr %shared.at, ptr %error.at) {
start:
  %count.at = getelementptr i8, ptr %image, i64 ${slot_count}
  %count = load i64, ptr %count.at
  %slots.at = getelementptr i8, ptr %image, i64 ${slots}
  %slots = load ptr, ptr %slots.at
  %failed.at = getelementptr i8, ptr %thread, i64 ${helper_failed}
  %pending.at = getelementptr i8, ptr %thread, i64 ${pending}
  %chunk.at = getelementptr i8, ptr %thread, i64 ${record_chunk}
  %next.at = getelementptr i8, ptr %thread, i64 ${record_next}
  %activity.at = getelementptr i8, ptr %thread, i64 ${record_activity}
  %offer.at = getelementptr i8, ptr %thread, i64 ${offer}
  %stop.at = getelementptr i8, ptr %thread, i64 ${stop}
  %done.at = getelementptr i8, ptr %thread, i64 ${done}
  %done = load ptr, ptr %done.at
  %grid.at = getelementptr %instruction, ptr %at, i64 0, i32 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %thread, ptr align 8 %grid.at, i64 32, i1 false)
  %bytes.at = getelementptr %instruction, ptr %at, i64 0, i32 7
  %bytes = load i64, ptr %bytes.at
  store i64 %bytes, ptr %shared.at
  %c.at = getelementptr %instruction, ptr %at, i64 0, i32 6
  %c = load i64, ptr %c.at
  store i64 %c, ptr %chunk.at
  store i64 0, ptr %next.at
  store i64 0, ptr %activity.at
  store i64 0, ptr %failed.at
  store ptr %at, ptr %offer.at
  store atomic i64 1, ptr %pending.at release, align 8
  %address = ptrtoint ptr %thread to i64
  %token = add i64 %address, 1
  br label %offers
offers:
  %i = phi i64 [ 0, %start ], [ %i.next, %offered ]
  %all = icmp sge i64 %i, %count
  br i1 %all, label %work, label %offering
offering:
  %distance = mul i64 %i, ${slot_size}
  %slot = getelementptr i8, ptr %slots, i64 %distance
  %more = atomicrmw add ptr %pending.at, i64 1 acq_rel
  %pair = cmpxchg ptr %slot, i64 0, i64 %token release monotonic
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %wake, label %busy
wake:
  %wake.at = getelementptr i8, ptr %slot, i64 ${wake}
  %wake.lock = load ptr, ptr %wake.at
  call void @PyThread_release_lock(ptr %wake.lock)
  br label %offered
busy:
  %fewer = atomicrmw sub ptr %pending.at, i64 1 acq_rel
  br label %offered
offered:
  %i.next = add i64 %i, 1
  br label %offers

work:
  %own = call i32 @share(ptr %thread, ptr %error.at)
  switch i32 %own, label %bad [ i32 0, label %withdraw i32 ${none_code}, label %withdraw ]
bad:
  call void @end.launch(ptr %thread)
  br label %withdraw
withdraw:
  br label %offers.left
offers.left:
  %j = phi i64 [ 0, %withdraw ], [ %j.next, %left ]
  %j.all = icmp sge i64 %j, %count
  br i1 %j.all, label %leave, label %look
look:
  %j.distance = mul i64 %j, ${slot_size}
  %j.slot = getelementptr i8, ptr %slots, i64 %j.distance
  %j.pair = cmpxchg ptr %j.slot, i64 %token, i64 0 acq_rel monotonic
  %j.mine = extractvalue { i64, i1 } %j.pair, 1
  br i1 %j.mine, label %withdrawn, label %left
withdrawn:
  %j.fewer = atomicrmw sub ptr %pending.at, i64 1 acq_rel
  br label %left
left:
  %j.next = add i64 %j, 1
  br label %offers.left

leave:
  %before = atomicrmw sub ptr %pending.at, i64 1 acq_rel
  %is.last = icmp eq i64 %before, 1
  br i1 %is.last, label %end, label %spin
spin:
  %turn = phi i64 [ 0, %leave ], [ %turn.next, %again ]
  %pending = load atomic i64, ptr %pending.at acquire, align 8
  %is.over = icmp eq i64 %pending, 0
  br i1 %is.over, label %wait, label %again
again:
  %turn.next = add i64 %turn, 1
  %tired = icmp sge i64 %turn.next, 4000
  br i1 %tired, label %wait, label %spin
wait:
  %interrupted = phi i32 [ 0, %spin ], [ 0, %again ], [ %interrupted, %poll ], [ %interrupted.next, %attended ]
  %status = call i32 @PyThread_acquire_lock_timed(ptr %done, i64 50000, i32 0)
  %is.done = icmp eq i32 %status, 1
  br i1 %is.done, label %end.waited, label %poll
poll:
  %word = load atomic i64, ptr %stop.at monotonic, align 8
  %runs = icmp eq i64 %word, 0
  br i1 %runs, label %wait, label %attend
attend:
  %answer = call ${convention} i32 @${attend}(ptr %stop.at)
  %is.interrupt = icmp eq i32 %answer, ${interrupted_code}
  br i1 %is.interrupt, label %interrupt, label %attended
interrupt:
  call void @end.launch(ptr %thread)
  br label %attended
attended:
  %interrupted.next = phi i32 [ %interrupted, %attend ], [ ${interrupted_code}, %interrupt ]
  br label %wait

end.waited:
  br label %end
end:
  %seen = phi i32 [ 0, %leave ], [ %interrupted, %end.waited ]
  store i64 0, ptr %chunk.at
  switch i32 %own, label %return.own [ i32 0, label %fine i32 ${none_code}, label %fine ]
return.own:
  ret i32 %own
fine:
  %is.seen = icmp ne i32 %seen, 0
  br i1 %is.seen, label %return.seen, label %helped
return.seen:
  ret i32 %seen
helped:
  %helper.failed = load atomic i64, ptr %failed.at monotonic, align 8
  %is.helper = icmp ne i64 %helper.failed, 0
  %result = select i1 %is.helper, i32 ${helper_failed_code}, i32 0
  ret i32 %result
}
