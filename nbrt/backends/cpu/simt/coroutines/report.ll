; What the checked mode is told.

declare void @nbrt_check_epoch(i64)
declare void @nbrt_check_mismatch(i64, i32, i64, i32)
declare void @nbrt_check_exited(i64, i32, i32)
declare void @nbrt_check_mask(i64, i32, i32)

; At a barrier that is about to let its threads pass: those that have returned, and the first that
; waits elsewhere, are named together with the first that waits.
define internal void @simt.report.barrier(ptr %block) {
start:
  br label %next
next:
  %rank = phi i32 [ 0, %start ], [ %following, %seen ]
  %waiter = phi i32 [ -1, %start ], [ %waiter.new, %seen ]
  %site = phi i32 [ 0, %start ], [ %site.new, %seen ]
  %exited = phi i32 [ -1, %start ], [ %exited.new, %seen ]
  %differs = phi i1 [ false, %start ], [ %differs.new, %seen ]
  %state.at = call ptr @simt.state(ptr %block, i32 %rank)
  %state = load i32, ptr %state.at
  %here = lshr i32 %state, 8
  %gone = icmp eq i32 %state, 0
  %no.exited = icmp eq i32 %exited, -1
  %exits = and i1 %gone, %no.exited
  %exited.new = select i1 %exits, i32 %rank, i32 %exited
  %stays = xor i1 %gone, true
  %no.waiter = icmp eq i32 %waiter, -1
  %first = and i1 %stays, %no.waiter
  %waiter.new = select i1 %first, i32 %rank, i32 %waiter
  %site.new = select i1 %first, i32 %here, i32 %site
  %elsewhere = icmp ne i32 %here, %site.new
  %other = and i1 %stays, %elsewhere
  %differed = xor i1 %differs, true
  %new = and i1 %other, %differed
  %differs.new = or i1 %differs, %other
  br i1 %new, label %mismatch, label %seen
mismatch:
  %site.a = zext i32 %site.new to i64
  %site.b = zext i32 %here to i64
  call void @nbrt_check_mismatch(i64 %site.a, i32 %waiter.new, i64 %site.b, i32 %rank)
  br label %seen
seen:
  %following = add nuw nsw i32 %rank, 1
  %last = icmp eq i32 %following, ${threads}
  br i1 %last, label %all, label %next
all:
  %complete = icmp eq i32 %exited.new, -1
  br i1 %complete, label %pass, label %early
early:
  %site.wide = zext i32 %site.new to i64
  call void @nbrt_check_exited(i64 %site.wide, i32 %waiter.new, i32 %exited.new)
  br label %pass
pass:
  %number.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 6
  %number = load i64, ptr %number.at
  call void @nbrt_check_epoch(i64 %number)
  ret void
}

; Lanes beyond the block's end are never missing: a full mask is right in its last warp too.
define internal void @simt.report.mask(i32 %warp, i32 %state, i32 %mask, i32 %group) {
  %last = icmp eq i32 %warp, ${last_warp}
  %exist = select i1 %last, i32 ${last_lanes}, i32 -1
  %wanted = and i32 %mask, %exist
  %complete = icmp eq i32 %wanted, %group
  br i1 %complete, label %end, label %incomplete
incomplete:
  %site = lshr i32 %state, 8
  %site.wide = zext i32 %site to i64
  call void @nbrt_check_mask(i64 %site.wide, i32 %mask, i32 %group)
  br label %end
end:
  ret void
}

define internal void @simt.report.grid() {
  call void @nbrt_check_epoch(i64 -1)
  ret void
}
