; Launches that several threads share. The token of a helper's slot is 0 if the helper is idle and
; reads it, 4 if it sleeps, 2 while it runs a launch, and the address of the `LaunchRecord` of a
; launch plus 1 if a thread offers that launch to it.

declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyThread_acquire_lock(ptr, i32)
declare i32 @PyThread_acquire_lock_timed(ptr, i64, i32)
declare void @PyThread_release_lock(ptr)

${platform}

${placement}

@latest = internal global i64 0, align 8

; Take part in launches, without the GIL, until one fails in this thread. An idle helper reads its
; token for a time and then sleeps. Every sleep ends by one release of the lock: that of the thread
; that has replaced the token 4.
define i64 @nbrt_help(ptr %slot) {
start:
  %wake.at = getelementptr i8, ptr %slot, i64 ${wake}
  %wake = load ptr, ptr %wake.at
  %spin.at = getelementptr i8, ptr %slot, i64 ${spin_ns}
  %error.at = getelementptr i8, ptr %slot, i64 ${helper_error}
  %code.at = getelementptr i8, ptr %slot, i64 ${helper_code}
  %offering.at = getelementptr i8, ptr %slot, i64 ${offering}
  %cpu.at = getelementptr i8, ptr %slot, i64 ${cpu}
  %python = call ptr @PyEval_SaveThread()
  br label %idle
idle:
  %idle.cpu = call i64 @this.cpu()
  store atomic i64 %idle.cpu, ptr %cpu.at monotonic, align 8
  %limit = load atomic i64, ptr %spin.at monotonic, align 8
  %idle.begin = call i64 @clock()
  br label %look
look:
  %turn = phi i64 [ 0, %idle ], [ %turn.next, %again ]
  %token = load atomic i64, ptr %slot monotonic, align 8
  %odd = and i64 %token, 1
  %is.offer = icmp eq i64 %odd, 1
  br i1 %is.offer, label %claim, label %spin
spin:
  ${pause}
  %turn.next = add i64 %turn, 1
  %low = and i64 %turn.next, 15
  %asks = icmp eq i64 %low, 0
  br i1 %asks, label %ask, label %again
ask:
  %now = call i64 @clock()
  %elapsed = sub i64 %now, %idle.begin
  %is.over = icmp sge i64 %elapsed, %limit
  br i1 %is.over, label %sleep, label %again
again:
  br label %look
sleep:
  %slept = cmpxchg ptr %slot, i64 0, i64 4 monotonic monotonic
  %sleeps = extractvalue { i64, i1 } %slept, 1
  br i1 %sleeps, label %wait, label %idle
wait:
  %woken = call i32 @PyThread_acquire_lock(ptr %wake, i32 1)
  br label %idle
claim:
  %pair = cmpxchg ptr %slot, i64 %token, i64 2 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %work, label %idle
work:
  %work.cpu = call i64 @this.cpu()
  store atomic i64 %work.cpu, ptr %cpu.at monotonic, align 8
  %address = sub i64 %token, 1
  %record = inttoptr i64 %address to ptr
  %call.at = getelementptr i8, ptr %record, i64 ${call}
  %call = load ptr, ptr %call.at
  %entry.at = getelementptr i8, ptr %record, i64 ${entry}
  %entry = load ptr, ptr %entry.at
  %arguments.at = getelementptr i8, ptr %record, i64 ${arguments}
  %arguments = load ptr, ptr %arguments.at
  %code = call i32 @run(ptr %record, ptr %call, ptr %entry, ptr %error.at, ptr %arguments)
  switch i32 %code, label %failed [
    i32 0, label %done
    i32 ${none_code}, label %done
    i32 ${stopped_code}, label %done
  ]
done:
  call void @nbrt_finish(ptr %slot, ptr %record)
  br label %idle
failed:
  %code.long = sext i32 %code to i64
  store i64 %code.long, ptr %code.at
  store ptr %record, ptr %offering.at
  %failed.at = getelementptr i8, ptr %record, i64 ${helper_failed}
  store atomic i64 1, ptr %failed.at monotonic, align 8
  call void @end.launch(ptr %record)
  call void @PyEval_RestoreThread(ptr %python)
  ret i64 1
}

; Leave a launch; the last one to leave wakes the caller.
define void @nbrt_finish(ptr %slot, ptr %record) {
start:
  %done.at = getelementptr i8, ptr %record, i64 ${done}
  %done = load ptr, ptr %done.at
  %pending.at = getelementptr i8, ptr %record, i64 ${pending}
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

; Run blocks of a launch until none is left, and add up the time.
define internal i32 @run(ptr %record, ptr %call, ptr %entry, ptr %error.at, ptr %arguments) {
start:
  %work.at = getelementptr i8, ptr %record, i64 ${work_ns}
  %begin = call i64 @clock()
  %address = ptrtoint ptr %record to i64
  %code = call i32 %call(ptr %entry, ptr %error.at, i64 %address, ptr %arguments)
  %end = call i64 @clock()
  %elapsed = sub i64 %end, %begin
  %before = atomicrmw add ptr %work.at, i64 %elapsed monotonic
  ret i32 %code
}

; End a launch in all threads.
define internal void @end.launch(ptr %record) {
  %total.at = getelementptr i8, ptr %record, i64 ${total}
  %total = load i64, ptr %total.at
  %next.at = getelementptr i8, ptr %record, i64 ${next}
  %stop.at = getelementptr i8, ptr %record, i64 ${stop}
  store atomic i64 ${stop_word}, ptr %stop.at monotonic, align 8
  store atomic i64 %total, ptr %next.at monotonic, align 8
  ret void
}

; Run a launch in this thread and in helpers that are idle. A helper that was last seen on the
; processor of this thread must leave it: the system may keep both there for seconds. Sleeping
; helpers are woken if the record asks for it, or if the last shared launch of the process has just
; ended.
define i32 @nbrt_share(ptr %record, ptr %call, ptr %entry, ptr %error.at, ptr %arguments) {
start:
  %helpers.at = getelementptr i8, ptr %record, i64 ${helpers}
  %count = load i64, ptr %helpers.at
  %slots.at = getelementptr i8, ptr %record, i64 ${slots}
  %slots = load ptr, ptr %slots.at
  %spin.at = getelementptr i8, ptr %slots, i64 ${spin_ns}
  %spin.ns = load atomic i64, ptr %spin.at monotonic, align 8
  %wakes.at = getelementptr i8, ptr %record, i64 ${wakes}
  %asks = load i64, ptr %wakes.at
  %call.at = getelementptr i8, ptr %record, i64 ${call}
  %entry.at = getelementptr i8, ptr %record, i64 ${entry}
  %arguments.at = getelementptr i8, ptr %record, i64 ${arguments}
  %failed.at = getelementptr i8, ptr %record, i64 ${helper_failed}
  %pending.at = getelementptr i8, ptr %record, i64 ${pending}
  %work.at = getelementptr i8, ptr %record, i64 ${work_ns}
  %elapsed.at = getelementptr i8, ptr %record, i64 ${elapsed_ns}
  %stop.at = getelementptr i8, ptr %record, i64 ${stop}
  %done.at = getelementptr i8, ptr %record, i64 ${done}
  %done = load ptr, ptr %done.at
  %total.at = getelementptr i8, ptr %record, i64 ${total}
  %total = load i64, ptr %total.at
  %next.at = getelementptr i8, ptr %record, i64 ${next}
  %first = load i64, ptr %next.at
  %parts.at = getelementptr i8, ptr %record, i64 ${parts}
  %part.count.at = getelementptr i8, ptr %record, i64 ${part_count}
  %part.count = add i64 %count, 1
  %all.blocks = sub i64 %total, %first
  %size = sdiv i64 %all.blocks, %part.count
  %parts = alloca [${part_size} x i8], i64 %part.count, align ${part_size}
  br label %divide
divide:
  %p = phi i64 [ 0, %start ], [ %p.next, %divide ]
  %from = phi i64 [ %first, %start ], [ %to, %divide ]
  %p.next = add i64 %p, 1
  %offset = mul i64 %size, %p.next
  %near = add i64 %first, %offset
  %is.divided = icmp eq i64 %p.next, %part.count
  %to = select i1 %is.divided, i64 %total, i64 %near
  %part = getelementptr [${part_size} x i8], ptr %parts, i64 %p
  %part.end = getelementptr i64, ptr %part, i64 1
  store i64 %from, ptr %part
  store i64 %to, ptr %part.end
  br i1 %is.divided, label %publish, label %divide

publish:
  store ptr %parts, ptr %parts.at
  store i64 %part.count, ptr %part.count.at
  store i64 0, ptr %helpers.at
  store ptr %call, ptr %call.at
  store ptr %entry, ptr %entry.at
  store ptr %arguments, ptr %arguments.at
  store i64 0, ptr %failed.at
  store i64 0, ptr %work.at
  store atomic i64 1, ptr %pending.at release, align 8
  %begin = call i64 @clock()
  %latest = load atomic i64, ptr @latest monotonic, align 8
  %since = sub i64 %begin, %latest
  %is.asked = icmp ne i64 %asks, 0
  %is.burst = icmp slt i64 %since, %spin.ns
  %wakes = or i1 %is.asked, %is.burst
  %address = ptrtoint ptr %record to i64
  %token = add i64 %address, 1
  %cpu = call i64 @this.cpu()
  br label %offers
offers:
  %i = phi i64 [ 0, %publish ], [ %i.next, %offered ]
  %all = icmp sge i64 %i, %count
  br i1 %all, label %work, label %offering
offering:
  %distance = mul i64 %i, ${slot_size}
  %slot = getelementptr i8, ptr %slots, i64 %distance
  %its.cpu.at = getelementptr i8, ptr %slot, i64 ${cpu}
  %its.cpu = load atomic i64, ptr %its.cpu.at monotonic, align 8
  %its.token = load atomic i64, ptr %slot monotonic, align 8
  %its.work = and i64 %its.token, 3
  %is.free = icmp eq i64 %its.work, 0
  %is.near = icmp eq i64 %its.cpu, %cpu
  %moves = and i1 %is.free, %is.near
  br i1 %moves, label %separate, label %offer
separate:
  call void @separate(ptr %slot, i64 %cpu)
  br label %offer
offer:
  %more = atomicrmw add ptr %pending.at, i64 1 acq_rel
  %pair = cmpxchg ptr %slot, i64 0, i64 %token release monotonic
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %offered, label %not.idle
not.idle:
  br i1 %wakes, label %rouse, label %busy
rouse:
  %asleep = cmpxchg ptr %slot, i64 4, i64 %token release monotonic
  %slept = extractvalue { i64, i1 } %asleep, 1
  br i1 %slept, label %wake, label %busy
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
  %own = call i32 @run(ptr %record, ptr %call, ptr %entry, ptr %error.at, ptr %arguments)
  switch i32 %own, label %bad [ i32 0, label %withdraw i32 ${none_code}, label %withdraw ]
bad:
  call void @end.launch(ptr %record)
  br label %withdraw
withdraw:
  br label %offers.left
offers.left:
  %j = phi i64 [ 0, %withdraw ], [ %j.next, %left ]
  %j.all = icmp sge i64 %j, %count
  br i1 %j.all, label %leave, label %take.back
take.back:
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

; The helpers run their last blocks. The time awake is a small part of that of the launch.
leave:
  %spin.begin = call i64 @clock()
  %own.ns = sub i64 %spin.begin, %begin
  %share.ns = ashr i64 %own.ns, 4
  %limit = add i64 %share.ns, %spin.ns
  %before = atomicrmw sub ptr %pending.at, i64 1 acq_rel
  %is.last = icmp eq i64 %before, 1
  br i1 %is.last, label %end, label %spin
spin:
  %turn = phi i64 [ 0, %leave ], [ %turn.next, %again ]
  %pending = load atomic i64, ptr %pending.at acquire, align 8
  %is.over = icmp eq i64 %pending, 0
  br i1 %is.over, label %wait, label %test
test:
  %spin.word = load atomic i64, ptr %stop.at monotonic, align 8
  %is.asked.here = icmp ne i64 %spin.word, 0
  br i1 %is.asked.here, label %wait, label %rest
rest:
  ${pause}
  %turn.next = add i64 %turn, 1
  %low = and i64 %turn.next, 15
  %looks = icmp eq i64 %low, 0
  br i1 %looks, label %look, label %again
look:
  %now = call i64 @clock()
  %elapsed = sub i64 %now, %spin.begin
  %is.tired = icmp sge i64 %elapsed, %limit
  br i1 %is.tired, label %wait, label %again
again:
  br label %spin
wait:
  %interrupted = phi i32 [ 0, %spin ], [ 0, %test ], [ 0, %look ], [ %interrupted, %poll ], [ %interrupted.next, %attended ]
  %status = call i32 @PyThread_acquire_lock_timed(ptr %done, i64 ${wait_us}, i32 0)
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
  call void @end.launch(ptr %record)
  br label %attended
attended:
  %interrupted.next = phi i32 [ %interrupted, %attend ], [ ${interrupted_code}, %interrupt ]
  br label %wait

end.waited:
  br label %end
end:
  %seen = phi i32 [ 0, %leave ], [ %interrupted, %end.waited ]
  store i64 0, ptr %parts.at
  %end.ns = call i64 @clock()
  %all.ns = sub i64 %end.ns, %begin
  store i64 %all.ns, ptr %elapsed.at
  store atomic i64 %end.ns, ptr @latest monotonic, align 8
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

${attend_module}
