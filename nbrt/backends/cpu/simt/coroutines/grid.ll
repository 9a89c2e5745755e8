; The scheduler of a whole grid. Each block runs until its threads have returned or wait at the barrier
; of the grid. When every block has done so, the barrier releases the threads.

; Move the threads at the barrier of the grid to the block's; return whether there were any.
define internal i1 @simt.grid.release(ptr %block) {
start:
  br label %next
next:
  %warp = phi i32 [ 0, %start ], [ %following, %next ]
  %before = phi i32 [ 0, %start ], [ %after, %next ]
  %lanes = call i32 @simt.waiting(ptr %block, i32 %warp, i32 2)
  %after = or i32 %before, %lanes
  %chosen = bitcast i32 %lanes to <32 x i1>
  %at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 1, i32 %warp, i32 0
  %states = load <32 x i32>, ptr %at, align 64
  %moved = select <32 x i1> %chosen, <32 x i32> splat (i32 1), <32 x i32> %states
  store <32 x i32> %moved, ptr %at, align 64
  %following = add nuw nsw i32 %warp, 1
  %last = icmp eq i32 %following, ${warps}
  br i1 %last, label %end, label %next
end:
  %any = icmp ne i32 %after, 0
  ret i1 %any
}

; Run the blocks, which are %distance bytes apart; return the one that failed, or null.
define internal ptr @simt.grid.run(ptr %blocks, i64 %distance, i64 %count) {
start:
  br label %phase
phase:
  br label %run
run:
  %number = phi i64 [ 0, %phase ], [ %following, %ran ]
  %offset = mul i64 %number, %distance
  %block = getelementptr inbounds i8, ptr %blocks, i64 %offset
  %status = call i32 @simt.block.run(ptr %block)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %ran, label %end
ran:
  %following = add nuw nsw i64 %number, 1
  %last = icmp eq i64 %following, %count
  br i1 %last, label %release, label %run
release:
  %released = phi i64 [ 0, %ran ], [ %released.next, %release ]
  %any = phi i1 [ false, %ran ], [ %any.next, %release ]
  %released.offset = mul i64 %released, %distance
  %released.block = getelementptr inbounds i8, ptr %blocks, i64 %released.offset
  %some = call i1 @simt.grid.release(ptr %released.block)
  %any.next = or i1 %any, %some
  %released.next = add nuw nsw i64 %released, 1
  %all = icmp eq i64 %released.next, %count
  br i1 %all, label %together, label %release
together:
  br i1 %any.next, label %pass, label %end
pass:
  br label %phase
end:
  %failed = phi ptr [ %block, %run ], [ null, %together ]
  ret ptr %failed
}

declare ptr @malloc(i64)
declare void @free(ptr)

define i32 ${name}.grid"(${parameters}) {
simt.entry:
  %simt.columns = zext i32 ${grid_x} to i64
  %simt.rows = zext i32 ${grid_y} to i64
  %simt.planes = zext i32 ${grid_z} to i64
  %simt.plane = mul i64 %simt.columns, %simt.rows
  %simt.count = mul i64 %simt.plane, %simt.planes
  %simt.bytes = call i64 @simt.block.bytes()
  %simt.sum = add i64 %simt.bytes, %simt.shared.bytes
  %simt.more = add i64 %simt.sum, ${above}
  %simt.distance = and i64 %simt.more, -${alignment}
  %simt.all = mul i64 %simt.distance, %simt.count
  %simt.asked = add i64 %simt.all, ${above}
  %simt.memory = call ptr @malloc(i64 %simt.asked)
  %simt.none = icmp eq ptr %simt.memory, null
  br i1 %simt.none, label %simt.full, label %simt.begin
simt.begin:
  %simt.blocks = call ptr @simt.aligned(ptr %simt.memory)
  br label %simt.next
simt.next:
  %simt.number = phi i64 [ 0, %simt.begin ], [ %simt.following, %simt.next ]
  %simt.offset = mul i64 %simt.number, %simt.distance
  %simt.block = getelementptr inbounds i8, ptr %simt.blocks, i64 %simt.offset
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
  %simt.following = add nuw nsw i64 %simt.number, 1
  %simt.last = icmp eq i64 %simt.following, %simt.count
  br i1 %simt.last, label %simt.run, label %simt.next
simt.run:
  %simt.failing = call ptr @simt.grid.run(ptr %simt.blocks, i64 %simt.distance, i64 %simt.count)
  %simt.fine = icmp eq ptr %simt.failing, null
  br i1 %simt.fine, label %simt.end, label %simt.failed
simt.failed:
  %simt.status.at = getelementptr inbounds %simt.block, ptr %simt.failing, i32 0, i32 2, i32 0
  %simt.failure = load i32, ptr %simt.status.at
  call void @simt.where(ptr %simt.failing, ptr %simt.where)
  %simt.from = getelementptr inbounds %simt.block, ptr %simt.failing, i32 0, i32 3, i32 ${block_field}
  %simt.to = getelementptr inbounds i32, ptr %simt.where, i64 3
  %simt.indices = load [3 x i32], ptr %simt.from
  store [3 x i32] %simt.indices, ptr %simt.to
  br label %simt.end
simt.end:
  %simt.status = phi i32 [ 0, %simt.run ], [ %simt.failure, %simt.failed ]
  call void @free(ptr %simt.memory)
  ret i32 %simt.status
simt.full:
  ret i32 -1
}
