"""`make randtest`: the words of streams, and the parser of the batteries' output."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.random.state import philox_block

if TYPE_CHECKING:
    from types import ModuleType

TOOLS = Path(__file__).resolve().parents[3] / "tools"
SEED = 2**63 + 12345
STATE = nbrt.PhiloxState(SEED)


@pytest.fixture(scope="module")
def modules() -> list[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        names = ("randtest", "randtest_batteries", "randtest_streams")
        return [importlib.import_module(name) for name in names]


@pytest.fixture
def batteries(modules: list[ModuleType]) -> ModuleType:
    return modules[1]


@pytest.fixture
def streams(modules: list[ModuleType]) -> ModuleType:
    return modules[2]


def _words(seed: int, n: int) -> np.ndarray:
    return nbrt.Generator(seed, device="cpu:0").random_bits(n)


def _two_chunks(streams: ModuleType, name: str) -> np.ndarray:
    chunks = itertools.islice(streams.STREAMS[name](SEED), 2)
    return np.concatenate(list(chunks))


def test_sequential(streams: ModuleType) -> None:
    words = _two_chunks(streams, "sequential")
    assert np.array_equal(words, _words(SEED, 2 * streams.CHUNK))


def test_shards_hold_the_words_of_whole_draws(streams: ModuleType) -> None:
    words = _two_chunks(streams, "shards")
    draws = _words(SEED, 2 * streams.CHUNK).reshape(2, -1, streams.EDGES[-1])
    parts = [
        draw[:, first:last].ravel()
        for draw in draws
        for first, last in itertools.pairwise(streams.EDGES)
    ]
    assert np.array_equal(words, np.concatenate(parts))


def test_first_blocks_of_seeds_children_and_offsets(streams: ModuleType) -> None:
    seeds = {
        "seeds": lambda number: SEED + number,
        "children": lambda number: STATE.fold_in(number).seed,
        "offsets": lambda number: STATE.advance(4 * number).split(1)[0].seed,
    }
    for name, seed in seeds.items():
        blocks = _two_chunks(streams, name).reshape(-1, 4)
        for number in (0, 1, len(blocks) // 2, len(blocks) - 1):
            assert np.array_equal(blocks[number], _words(seed(number), 4)), (name, number)


def test_subsequences_are_the_upper_half_of_the_counter(streams: ModuleType) -> None:
    words = _two_chunks(streams, "subsequences")
    for thread in (0, 1, streams.CHUNK, 2 * streams.CHUNK - 1):
        assert words[thread] == philox_block(thread << 64, SEED) % 2**32


def test_uniforms_and_normals_hold_the_bits_of_draws(streams: ModuleType) -> None:
    words = next(streams.STREAMS["uniforms"](SEED))
    numbers = nbrt.Generator(SEED, device="cpu:0").random(4, dtype="float32")
    bits = [int(number * 2**24) for number in numbers.tolist()]
    joined = sum(number << 24 * i for i, number in enumerate(bits))
    assert [int(word) for word in words[:3]] == [joined >> 32 * i & 0xFFFFFFFF for i in range(3)]

    words = next(streams.STREAMS["normals"](SEED))
    first = nbrt.Generator(SEED, device="cpu:0").standard_normal(2, dtype="float32").tolist()
    cells = [int(NormalDist().cdf(number) * 2**16) for number in first]
    assert int(words[0]) == cells[0] | cells[1] << 16


OUTPUTS = {
    "practrand": (
        """RNG_test using PractRand version 0.95-planet36
length= 64 mebibytes (2^26 bytes), time= 1.1 seconds
  Test Name                         Raw       Processed     Evaluation
  BCFN(2+0,13-3,T)                  R=  -0.5  p = 0.568     normal
  BCFN(2+1,13-3,T)                  R>+99999  p = 0           FAIL !!!!!!!!
  BCFN(2+4,13-5,T)                  R=+23039  p =  3e-9019    FAIL !!!!!!!!
  Gap-16:A                          R=  -4.3  p =1-2.5e-3   unusual
  [Low8/32]BCFN(2+2,13-5,T)         R= +12.9  p~=   3e-12      VERY SUSPICIOUS
  BRank(12):256(2)                  R= +11.2  p~=  8.1e-5   mildly suspicious
  TMFn(2+0):wl                      "fail"    FAIL !!!
""",
        [
            ("BCFN(2+0,13-3,T)", 0.568),
            ("BCFN(2+1,13-3,T)", 0.0),
            ("BCFN(2+4,13-5,T)", 0.0),
            ("Gap-16:A", 0.9975),
            ("[Low8/32]BCFN(2+2,13-5,T)", 3e-12),
            ("BRank(12):256(2)", 8.1e-5),
            ("TMFn(2+0):wl", 0.0),
        ],
    ),
    "smallcrush": (
        """statistic\tBirthdaySpacings\t0.25
statistic\tRandomWalk1 H\t0.99996
statistic\tnot done\t-1
""",
        [("BirthdaySpacings", 0.25), ("RandomWalk1 H", 0.99996)],
    ),
    "dieharder": (
        """#            dieharder version 3.31.1 Copyright 2003 Robert G. Brown          #
        test_name   |ntup| tsamples |psamples|  p-value |Assessment
   diehard_birthdays|   0|       100|     100|0.36425001|  PASSED
          sts_serial|   4|    100000|     100|0.00000012|  FAILED
""",
        [("diehard_birthdays 0", 0.36425001), ("sts_serial 4", 1.2e-7)],
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_batteries_print(batteries: ModuleType, name: str) -> None:
    output, expected = OUTPUTS[name]
    findings = batteries.BATTERIES[name].findings(output)
    assert [test for test, _ in findings] == [test for test, _ in expected]
    assert [p for _, p in findings] == pytest.approx([p for _, p in expected], rel=1e-12)


def test_a_run_from_stream_to_page(
    modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    randtest, batteries, _ = modules
    script = "import sys; print(sys.stdin.buffer.read(16).hex())"
    reader = batteries.Battery(
        sys.executable, lambda _: ["-c", script], lambda out: [batteries.Finding(out.strip(), 0.25)]
    )
    missing = batteries.Battery("nbrt-has-no-such-program", lambda _: [], lambda _: [])
    for name, battery in {"dieharder": reader, "crush": missing}.items():
        monkeypatch.setitem(batteries.BATTERIES, name, battery)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n")
    out = tmp_path / "folder" / "results.json"
    arguments = ["--battery", "dieharder", "--battery", "crush", "--stream", "sequential"]
    assert randtest.main([*arguments, "--out", str(out), "--page", str(page)]) == 0
    record = json.loads(out.read_text())
    (run,) = record["runs"]
    assert run["extreme"] == [_words(42, 4).astype("<u4").tobytes().hex(), 0.25]
    assert (run["battery"], run["seed"], run["verdict"]) == ("dieharder", 42, "passed")
    assert "nbrt-has-no-such-program is not installed" in record["skipped"]["crush"]
    text = page.read_text()
    assert text.startswith("before\n<!-- results -->\n\n| Stream |")
    assert text.endswith("<!-- end of results -->\nafter\n")
    assert "old" not in text
    assert "*crush* was skipped: nbrt-has-no-such-program is not installed" in text


def test_what_is_run(modules: list[ModuleType]) -> None:
    randtest, batteries, streams = modules

    def plan(*arguments: str) -> dict[str, dict[str, int]]:
        chosen = randtest._parser().parse_args(arguments)
        return {name: dict(places) for name, places in randtest.plan(chosen).items()}

    usual = plan()
    assert list(usual) == ["smallcrush", "practrand", "dieharder"]
    assert list(usual["practrand"]) == list(usual["smallcrush"]) == list(streams.STREAMS)
    assert min(usual["practrand"].values()) == 2**30
    assert usual["practrand"]["sequential"] == 2**32
    assert list(usual["dieharder"]) == ["sequential"]
    assert list(plan("--quick")) == ["smallcrush", "practrand"]
    assert set(plan("--long")) == set(batteries.BATTERIES)
    few = plan("--battery", "dieharder", "--stream", "seeds", "--stream", "shards")
    assert list(few["dieharder"]) == ["seeds", "shards"]


@pytest.mark.parametrize(
    ("first", "second", "verdicts"),
    [
        ({}, {}, ["passed"]),
        ({"a": 1e-5}, {"a": 0.5, "b": 1e-9}, ["run again", "passed"]),
        ({"a": 1e-5}, {"a": 1 - 1e-5}, ["run again", "FAILED"]),
    ],
)
def test_a_suspect_is_judged_by_another_seed(
    modules: list[ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, float],
    second: dict[str, float],
    verdicts: list[str],
) -> None:
    randtest, batteries, _ = modules
    outputs = {SEED: first, SEED + 2**40: second}

    def run(battery: str, program: Path, stream: str, size: int, seed: int) -> dict[str, Any]:
        findings = [batteries.Finding(*found) for found in outputs[seed].items()]
        suspect = [finding for finding in findings if finding.extremity < randtest.SUSPECT]
        return {"suspect": suspect, "verdict": "passed"}

    monkeypatch.setattr(randtest, "_run", run)
    runs = randtest._judge("practrand", Path("RNG_test"), "seeds", 2**20, SEED)
    assert [one["verdict"] for one in runs] == verdicts
