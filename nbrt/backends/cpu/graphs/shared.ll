; Launch a kernel in this thread and in the helpers that are idle.
define internal i32 @launch.shared(ptr %image, ptr %at, ptr %thread, ptr %shared.at, ptr %error.at) {
start:
  %count.at = getelementptr i8, ptr %image, i64 ${slot_count}
  %count = load i64, ptr %count.at
  %slots.at = getelementptr i8, ptr %image, i64 ${slots}
  %slots = load ptr, ptr %slots.at
  %helpers.at = getelementptr i8, ptr %thread, i64 ${record_helpers}
  %thread.slots.at = getelementptr i8, ptr %thread, i64 ${record_slots}
  %chunk.at = getelementptr i8, ptr %thread, i64 ${record_chunk}
  %next.at = getelementptr i8, ptr %thread, i64 ${record_next}
  %activity.at = getelementptr i8, ptr %thread, i64 ${record_activity}
  %wakes.at = getelementptr i8, ptr %thread, i64 ${record_wakes}
  %share.at = getelementptr i8, ptr %image, i64 ${share}
  %share = load ptr, ptr %share.at
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
  store i64 %count, ptr %helpers.at
  store i64 1, ptr %wakes.at
  store ptr %slots, ptr %thread.slots.at
  %arguments.at = getelementptr %instruction, ptr %at, i64 0, i32 3
  %arguments = load ptr, ptr %arguments.at
  %entry.at = getelementptr %instruction, ptr %at, i64 0, i32 10
  %entry = load ptr, ptr %entry.at
  %trampoline.at = getelementptr %instruction, ptr %at, i64 0, i32 11
  %trampoline = load ptr, ptr %trampoline.at
  %code = call i32 %share(ptr %thread, ptr %trampoline, ptr %entry, ptr %error.at, ptr %arguments)
  store i64 0, ptr %chunk.at
  ret i32 %code
}
