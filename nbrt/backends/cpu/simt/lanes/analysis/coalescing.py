"""Spilled values that share a slot: a phi and the value that it takes in the next iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.graph import dominates, dominator_tree, reachable

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread

__all__ = ["slot_owners"]


def slot_owners(thread: SplitThread) -> dict[str, str]:
    """Return the phis whose slots other spilled values of one thread may use, by these values.

    An accumulator of a loop with barriers is a phi at the head of the loop and a new value in its
    body. In two slots, each iteration would copy one to the other.

    A value V may use the slot of a phi P that takes V on some edge, if

    - the block of P dominates that of V: all uses of V are then behind V, and no path leads from V
      over P to a use of V without V again. So P overwrites no V that is still used;
    - no path leads from V to the start of a region that loads P without P in between. Regions load
      at their start only, so V overwrites no P that is still loaded.

    Each phi has at most one such value, which is in no other pair.
    """
    function = thread.function
    home = {i.name: b.label for b, i in function.instructions() if i.name}
    types = {i.name: i.type for _, i in function.instructions() if i.name}

    def thread_successors(label: str) -> list[str]:
        return [each for each in function.blocks[label].successors if each in function.blocks]

    idom = dominator_tree(function.entry, thread_successors)
    owners: dict[str, str] = {}
    taken: set[str] = set()
    for label in function.blocks:
        for phi in thread.phis(label):
            if phi.name not in thread.spilled or phi.name in taken:
                continue
            for operand in phi.operands:
                value = operand.text
                if (
                    value in thread.spilled
                    and value not in taken | {phi.name}
                    and types[value] == types[phi.name]
                    and dominates(idom, label, home[value])
                    and not _is_loaded_behind(thread, phi.name, label, home[value])
                ):
                    owners[value] = phi.name
                    taken |= {value, phi.name}
                    break
    return owners


def _is_loaded_behind(thread: SplitThread, phi: str, block: str, value_block: str) -> bool:
    """Return whether a region that loads a phi may start between a value and the phi's block."""
    blocks = thread.function.blocks

    def successors(label: str) -> list[str]:
        return [each for each in blocks[label].successors if each in blocks and each != block]

    behind = reachable([value_block], successors)
    return any(phi in region.loads and region.root in behind for region in thread.regions)
