"""Memory that a draw reads on another stream is not reused before that stream has passed."""

from __future__ import annotations

import nbrt
from nbrt.backends.draw import Draw
from nbrt.index_sets import RunTable
from nbrt.runtime.stream import record_use


def test_every_array_that_a_draw_may_read_is_recorded() -> None:
    own, other = nbrt.Stream("cpu:1"), nbrt.Stream("cpu:1")
    with nbrt.stream(own):
        loc, place, starts, begins, out = (nbrt.zeros(3, "int64") for _ in range(5))
    table = RunTable(starts, begins, 3, 1)
    draw = Draw("normal", "float32", 9, (loc, 1.0), region=table, device_state=place)
    owner_of = own.interface.owner_of

    record_use(own, (out, draw))
    assert not any(owner_of(each).recorded for each in (loc, place, starts, begins, out))

    record_use(other, (out, draw))
    for each in (loc, place, starts, begins, out):
        assert owner_of(each).recorded == {other}


def test_a_draw_without_arrays_reads_none() -> None:
    assert [each for each in Draw("uniform", "float32", 9).arrays if each is not None] == []
