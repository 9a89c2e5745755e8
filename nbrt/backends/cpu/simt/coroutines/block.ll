declare ptr @malloc(i64)
declare void @free(ptr)

; Run one block. Its record and the frames of its threads are one allocation.
define i32 ${name}.block"(${parameters}) {
simt.entry:
  %simt.bytes = call i64 @simt.block.bytes()
  %simt.asked = add i64 %simt.bytes, ${above}
  %simt.memory = call ptr @malloc(i64 %simt.asked)
  %simt.none = icmp eq ptr %simt.memory, null
  br i1 %simt.none, label %simt.full, label %simt.run
simt.run:
  %simt.block = call ptr @simt.aligned(ptr %simt.memory)
${store_arguments}
  %simt.plane = mul i32 ${block_z}, ${grid_y}
  %simt.row = add i32 %simt.plane, ${block_y}
  %simt.row.wide = zext i32 %simt.row to i64
  %simt.width = zext i32 ${grid_x} to i64
  %simt.before = mul i64 %simt.row.wide, %simt.width
  %simt.column = zext i32 ${block_x} to i64
  %simt.number = add i64 %simt.before, %simt.column
  call void @simt.block.start(ptr %simt.block, i64 %simt.number, i64 ${seed})
  %simt.status = call i32 @simt.block.run(ptr %simt.block)
  %simt.fine = icmp eq i32 %simt.status, 0
  br i1 %simt.fine, label %simt.end, label %simt.failed
simt.failed:
  call void @simt.where(ptr %simt.block, ptr %simt.where)
  br label %simt.end
simt.end:
  call void @free(ptr %simt.memory)
  ret i32 %simt.status
simt.full:
  ret i32 -1
}
