"""The audit: what it records, what it finds between two runs, what it draws again."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.sample_backend import SampleInterface
from nbrt.backends.interface import Capabilities
from nbrt.cli.main import main
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError, StreamError
from nbrt.random import audit
from nbrt.testing.reproducibility import NotReproducibleError, check_reproducible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def _rng(seed: int = 7, device: str = "cpu:0") -> nbrt.Generator:
    return nbrt.Generator(seed, device=device)


def _recorded(path: Path, program: Callable[[], object], digests: bool = False) -> audit.Recording:
    with audit.record(path, digests=digests):
        program()
    return audit.load(path)


def _uniforms(*sizes: int, seed: int = 7, device: str = "cpu:0") -> Callable[[], object]:
    def program() -> None:
        rng = _rng(seed, device)
        for size in sizes:
            rng.random(size, dtype="float32")

    return program


def test_a_record_says_what_was_drawn_where_and_by_whom(tmp_path: Path) -> None:
    def program() -> None:
        first, second = _rng(7), _rng(8, "cpu:1")
        first.random((2, 3), dtype="float32")
        second.integers(0, 10, 4)
        first.uniform(-1, 1, 5, dtype="float32")

    draws = _recorded(tmp_path / "run.jsonl", program).draws
    assert [draw.index for draw in draws] == [0, 1, 2]
    assert [draw.generator for draw in draws] == [1, 2, 1]
    assert [(draw.seed, draw.offset) for draw in draws] == [(7, 0), (8, 0), (7, 8)]
    assert [draw.device for draw in draws] == ["cpu:0", "cpu:1", "cpu:0"]
    assert [draw.distribution for draw in draws] == ["uniform", "integers", "uniform"]
    assert [(draw.shape, draw.n) for draw in draws] == [((2, 3), 6), ((4,), 4), ((5,), 5)]
    assert draws[1].parameters == (0, 10)
    assert draws[2].parameters == (-1.0, 1.0)
    assert [draw.dtype for draw in draws] == ["float32", "int64", "float32"]
    assert {draw.thread for draw in draws} == {threading.current_thread().name}
    assert all(draw.digest is None and draw.replayable for draw in draws)
    top = draws[0].stack[0]
    assert top.startswith(f"{__file__}:")
    assert top.endswith('in program: first.random((2, 3), dtype="float32")')
    assert "in _recorded: program()" in draws[0].stack[1]


def test_a_stack_shows_the_code_that_drew_not_nbrt(tmp_path: Path) -> None:
    with nbrt.random.fork_rng():
        draws = _recorded(tmp_path / "run.jsonl", lambda: nbrt.random.rand(3)).draws
    assert "nbrt.random.rand(3)" in draws[0].stack[0]
    assert len(draws[0].stack) == 4


@pytest.mark.parametrize("stream", ["default", "side"])
def test_digests_are_of_the_bits(stream: str, tmp_path: Path) -> None:
    arrays = []

    def program() -> None:
        chosen = nbrt.Stream("cpu:0") if stream == "side" else nbrt.default_stream("cpu:0")
        with nbrt.stream(chosen):
            rng = _rng()
            arrays.append(rng.random((3, 4), dtype="float32"))
            arrays.append(rng.integers(0, 9, 9))

    draws = _recorded(tmp_path / "run.jsonl", program, digests=True).draws
    for draw, array in zip(draws, arrays, strict=True):
        assert draw.digest == hashlib.sha256(array.tobytes()).hexdigest() == audit.digest(array)


def test_every_draw_is_in_the_file_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rng = _rng()
    with audit.record(path):
        for count in (1, 2, 3):
            rng.random(4, dtype="float32")
            assert len(audit.load(path).draws) == count
    rng.random(4, dtype="float32")
    assert len(audit.load(path).draws) == 3


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    _recorded(path, _uniforms(4, 5))
    path.write_text(path.read_text()[:-20])
    assert [draw.shape for draw in audit.load(path).draws] == [(4,)]


def test_a_draw_that_is_refused_is_not_recorded(tmp_path: Path) -> None:
    def program() -> None:
        with pytest.raises(ArgumentTypeError):
            _rng().random(3, dtype="int32")

    assert _recorded(tmp_path / "run.jsonl", program).draws == ()


def test_an_exception_of_the_program_is_the_one_that_comes_out(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("of the stream")

    stream = nbrt.Stream("cpu:0")
    with (  # noqa: PT012  # what leaves the block is the point
        pytest.raises(KeyError, match="of the program"),
        audit.record(tmp_path / "run.jsonl", digests=True),
        nbrt.stream(stream),
    ):
        _rng().random(3, dtype="float32")
        stream.call(fail)
        _rng().random(3, dtype="float32")
        raise KeyError("of the program")
    with pytest.raises(StreamError, match="of the stream"):
        stream.synchronize()
    assert len(audit.load(tmp_path / "run.jsonl").draws) == 2


def test_work_that_failed_shows_where_the_digests_are_waited_for(tmp_path: Path) -> None:
    stream = nbrt.Stream("cpu:0")
    with (  # noqa: PT012  # the end of the block raises
        pytest.raises(StreamError, match="ZeroDivisionError"),
        audit.record(tmp_path / "run.jsonl", digests=True),
        nbrt.stream(stream),
    ):
        _rng().random(3, dtype="float32")
        stream.call(divmod, 1, 0)
    stream.synchronize()


def test_blocks_nest_but_not_on_one_file(tmp_path: Path) -> None:
    path, other = tmp_path / "run.jsonl", tmp_path / "other.jsonl"
    with audit.record(path):
        _uniforms(4)()
        with audit.record(other):
            _uniforms(5)()
        with pytest.raises(ArgumentError, match="use another"), audit.record(path):
            pass
        _uniforms(6)()
    assert [draw.shape for draw in audit.load(path).draws] == [(4,), (5,), (6,)]
    assert [draw.shape for draw in audit.load(other).draws] == [(5,)]


@pytest.mark.parametrize("text", ["", "x\n", '{"a": 1}\n', '{"nbrt_audit": 1}\n{"index": 0}\n'])
def test_a_file_that_is_no_recording(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"expected a file of nbrt\.random\.audit\.record"):
        audit.load(path)
    with pytest.raises(ArgumentError, match="expected a recording to read"):
        audit.load(tmp_path / "missing.jsonl")
    path.write_text('{"nbrt_audit": 99, "nbrt": "7.0"}\n')
    with pytest.raises(ArgumentError, match=r"read it with the nbrt that wrote it, 7\.0"):
        audit.load(path)


# -- compare ---------------------------------------------------------------------------------------


def _two_kinds(order: int) -> None:
    rng = _rng()
    steps = [
        lambda: rng.random(4, dtype="float32"),
        lambda: rng.standard_normal(4, dtype="float32"),
    ]
    for step in (*steps[::order], steps[0]):
        step()


def _after_a_skip(words: int) -> None:
    rng = _rng()
    rng.random(4, dtype="float32")
    rng.advance(words).random(4, dtype="float32")


def _one(method: str, *args: float, dtype: str = "float32") -> Callable[[], object]:
    return lambda: getattr(_rng(), method)(*args, 4, dtype=dtype)


CASES = {
    "seed": (_uniforms(4), _uniforms(4, seed=8), 0, "7 in first run, 8 in second run"),
    "offset": (
        lambda: _after_a_skip(0),
        lambda: _after_a_skip(12),
        1,
        "since its draw #0 the generator moved by 4 words, against 16 since #0",
    ),
    "shape": (_uniforms(4, 5, 6), _uniforms(4, 8, 6), 1, r"\(5,\) in first run, \(8,\)"),
    "dtype": (
        _one("random", dtype="float32"),
        _one("random", dtype="float64"),
        0,
        "float32 in first run, float64 in second run",
    ),
    "distribution": (_one("random"), _one("standard_normal"), 0, "uniform in first run, normal"),
    "parameters": (_one("uniform", 0.0, 1.0), _one("uniform", 0.0, 2.0), 0, r"\(0\.0, 2\.0\)"),
    "missing": (_uniforms(4, 5), _uniforms(4), 1, "ends before the last 1 of the draws"),
    "extra": (_uniforms(4), _uniforms(4, 5, 6), 1, "goes on for 2 more"),
    "missing-inside": (_uniforms(4, 5, 6, 7), _uniforms(4, 7), 1, "leaves out 2 here"),
    "extra-inside": (_uniforms(4, 7), _uniforms(4, 5, 7), 1, "makes 1 more here"),
    "order": (lambda: _two_kinds(1), lambda: _two_kinds(-1), 0, "is #1 of second run"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_difference_is_named(case: str, tmp_path: Path) -> None:
    programs, place, says = CASES[case][:2], *CASES[case][2:]
    first, second = (
        _recorded(tmp_path / f"{number}.jsonl", program, digests=True)
        for number, program in enumerate(programs)
    )
    difference = audit.compare(first, second)
    assert difference is not None
    assert difference.kind == case.partition("-")[0]
    assert {each.index for each in (difference.first, difference.second) if each} == {place}
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(difference)
    assert str(difference).count("test_audit.py") >= 2
    assert audit.compare(first, first) is None


def test_places_do_not_count(tmp_path: Path) -> None:
    def on_a_stream() -> None:
        with nbrt.stream(nbrt.Stream("cpu:0")):
            _uniforms(4, 5)()

    first = _recorded(tmp_path / "0.jsonl", _uniforms(4, 5), digests=True)
    for program in (_uniforms(4, 5, device="cpu:1"), on_a_stream):
        _recorded(tmp_path / "1.jsonl", program, digests=True)
        assert audit.compare(first, tmp_path / "1.jsonl") is None


def test_other_bits_of_the_same_draw(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = _recorded(path, _uniforms(4, 5), digests=True)
    digest = first.draws[1].digest
    assert digest is not None
    path.write_text(path.read_text().replace(digest, "0" * 64))
    difference = audit.compare(first, path)
    assert difference is not None
    assert difference.kind == "digest"
    assert difference.first == first.draws[1]


def test_another_stream_version(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = _recorded(path, _uniforms(4))
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    difference = audit.compare(first, path)
    assert difference is not None
    assert difference.kind == "version"
    assert "the bits changed between nbrt" in difference.reason


def test_arrays_of_parameters_are_compared_by_their_values(tmp_path: Path) -> None:
    def program(high: float) -> Callable[[], object]:
        return lambda: _rng().uniform(np.zeros(4), np.array([1.0, 1.0, 1.0, high]))

    first, second, third = (
        _recorded(tmp_path / f"{number}.jsonl", program(high))
        for number, high in enumerate((1.0, 1.0, 2.0))
    )
    assert audit.compare(first, second) is None
    difference = audit.compare(first, third)
    assert difference is not None
    assert difference.kind == "parameters"
    values = hashlib.sha256(np.ones(4).tobytes()).hexdigest()
    assert values in first.draws[0].parameters[1]
    assert not first.draws[0].replayable


def _threads(*programs: Callable[[], object]) -> Callable[[], object]:
    def program() -> None:
        for each in programs:
            thread = threading.Thread(target=each)
            thread.start()
            thread.join()

    return program


def test_threads_may_take_turns_in_any_order(tmp_path: Path) -> None:
    works = [_uniforms(4, 5, seed=seed) for seed in (1, 2, 3)]
    first = _recorded(tmp_path / "0.jsonl", _threads(*works))
    second = _recorded(tmp_path / "1.jsonl", _threads(*works[::-1]))
    assert len({draw.thread for draw in first.draws}) == 3
    assert audit.compare(first, second) is None
    third = _recorded(tmp_path / "2.jsonl", _threads(works[2], _uniforms(4, 6, seed=2), works[0]))
    difference = audit.compare(first, third)
    assert difference is not None
    assert (difference.kind, difference.first) == ("shape", first.draws[3])


def test_threads_that_share_a_generator(tmp_path: Path) -> None:
    def program(threads_turn: int) -> Callable[[], object]:
        def run() -> None:
            rng = _rng()
            for turn in range(3):
                if turn == threads_turn:
                    _threads(lambda: rng.random(4, dtype="float32"))()
                else:
                    rng.random(4, dtype="float32")

        return run

    first, second = (_recorded(tmp_path / f"{turn}.jsonl", program(turn)) for turn in (2, 1))
    difference = audit.compare(first, second)
    assert difference is not None
    assert difference.kind == "offset"
    assert "give each thread a separate generator" in difference.reason


# -- replay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 5, 100])
def test_a_draw_in_pieces_has_the_same_bits(pieces: int, tmp_path: Path) -> None:
    def program() -> None:
        rng = _rng()
        rng.random((3, 7), dtype="float32")
        rng.shard((6, 8), (slice(1, 6, 2), slice(2, 7))).random(dtype="float32")

    for draw in _recorded(tmp_path / "run.jsonl", program, digests=True).draws:
        array = audit.replay(draw, device="cpu:1", pieces=pieces)
        assert array.shape == draw.shape
        assert nbrt.device_of(array) == nbrt.Device("cpu:1")
        nbrt.synchronize("cpu:1")
        assert audit.digest(array) == draw.digest


def test_a_shard_is_recorded_as_a_part(tmp_path: Path) -> None:
    recordings = [
        _recorded(
            tmp_path / f"{column}.jsonl",
            lambda column=column: (
                _rng().shard((4, 6), (slice(None), column)).random(dtype="float32")
            ),
        )
        for column in (1, 2)
    ]
    draw = recordings[0].draws[0]
    assert (draw.n, draw.shape) == (24, (4,))
    assert draw.region == nbrt.random.Region(1, (4,), (6,))
    difference = audit.compare(*recordings)
    assert difference is not None
    assert difference.kind == "region"


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    def program() -> None:
        _rng().uniform(np.zeros(4), 1.0)
        _rng().random(4, dtype="float32")

    spread, plain = _recorded(tmp_path / "run.jsonl", program).draws
    with pytest.raises(NotSupportedError, match="numbers as parameters"):
        audit.replay(spread)
    with pytest.raises(ArgumentError, match="at least 1 piece"):
        audit.replay(plain, pieces=0)
    with pytest.raises(ArgumentTypeError, match="a number of pieces"):
        audit.replay(plain, pieces=1.5)  # type: ignore[arg-type]


class Remote(SampleInterface):
    """A device whose memory the host cannot read; it draws 0, 1, 2, ... and overlooks regions."""

    capabilities = Capabilities(stream_priorities=(0, -2), host_addressable=False)

    def draw(self, queue: Any, out: Any, draw: Any) -> None:
        queue.put(np.copyto, out, np.arange(out.size, dtype=out.dtype))


@pytest.fixture
def remote() -> Iterator[str]:
    nbrt.register_interface_for_device("remote", Remote("remote"))
    yield "remote:0"
    nbrt.unregister_interface_for_device("remote")


def test_digests_of_a_device_that_the_host_cannot_read(remote: str, tmp_path: Path) -> None:
    (draw,) = _recorded(tmp_path / "run.jsonl", _uniforms(9, device=remote), digests=True).draws
    assert draw.digest == hashlib.sha256(np.arange(9, dtype=np.float32).tobytes()).hexdigest()
    assert draw.device == remote


def test_a_backend_that_draws_shards_wrongly_is_found(remote: str) -> None:
    program = _uniforms(9, device=remote)
    assert check_reproducible(program, devices=[remote], shards=[1]).replayed == 1
    with pytest.raises(NotReproducibleError, match=r"other bits in 3 shards: #0 uniform(.|\n)*py:"):
        check_reproducible(program, devices=[remote], shards=[1, 3])


# -- the command -----------------------------------------------------------------------------------

SCRIPT = """
import sys, nbrt
nbrt.Generator(int(sys.argv[1]), device="cpu:0").random(4, dtype="float32")
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    runs = [str(tmp_path / f"{number}.jsonl") for number in range(3)]
    for path, seed in zip(runs, ("7", "7", "8"), strict=True):
        assert main(["audit", "record", "--digests", path, str(script), seed]) == 0
    header = json.loads((tmp_path / "0.jsonl").read_text().splitlines()[0])
    assert header["digests"] is True
    assert header["nbrt"] == nbrt.__version__

    assert main(["audit", "compare", *runs[:2]]) == 0
    assert capsys.readouterr().out == "no difference: 1 draws\n"
    assert main(["audit", "compare", *runs[1:]]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"the runs differ (seed): 7 in {runs[1]}, 8 in {runs[2]}; ")
    assert f"{script}:3 in <module>: nbrt.Generator" in out

    assert main(["audit", "show", runs[2]]) == 0
    assert "#0 uniform(0.0, 1.0) float32 (4,), seed 8 offset 0" in capsys.readouterr().out
    assert main(["audit", "show", str(tmp_path / "missing")]) == 1
    assert main(["audit", "record", runs[0], str(tmp_path / "missing.py")]) == 1
    assert "expected a script to run" in capsys.readouterr().err
