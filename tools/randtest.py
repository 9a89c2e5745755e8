"""Run the statistical batteries that this machine has on nbrt's random words.

``python tools/randtest.py`` runs SmallCrush and PractRand on every stream and dieharder on one, one
after the other, and writes the results to ``--out``; ``--page`` gets its tables from there.
``--emit NAME`` writes the words of a stream to standard output instead, for other batteries.

A test whose p-value is within 1e-4 of 0 or of 1 is suspect. Its battery then runs again on the same
stream with another seed, and fails if the same test is suspect again.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbrt
from randtest_batteries import BATTERIES, UnavailableError
from randtest_streams import STREAMS, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    Record = dict[str, Any]

__all__ = ["main", "plan", "tables"]

SUSPECT = 1e-4
_SEED = 42
# Far enough that streams over neighbouring seeds do not meet.
_AGAIN = 2**40
_MIB, _GIB = 2**20, 2**30
_HEAD = (
    "| Stream | Seed | Read | p-values | Most extreme | Verdict | Time | Date |",
    "|---|--:|--:|--:|---|---|--:|---|",
)
_RESULTS = re.compile(r"(<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen batteries; return 1 if one failed."""
    chosen = _parser().parse_args(arguments)
    if chosen.emit:
        _emit(chosen.emit, chosen.seed)
    record: Record = {"skipped": {}, "runs": []}
    if chosen.out.exists():
        record = json.loads(chosen.out.read_text(encoding="utf-8"))
    failed = False
    for battery, places in plan(chosen).items():
        try:
            program = BATTERIES[battery].program()
        except UnavailableError as reason:
            print(f"{battery}: SKIPPED: {reason}", flush=True)
            record["skipped"][battery] = str(reason)
            continue
        record["skipped"].pop(battery, None)
        for stream, size in places:
            runs = _judge(battery, program, stream, size, chosen.seed)
            failed |= runs[-1]["verdict"] == "FAILED"
            others = [r for r in record["runs"] if (r["battery"], r["stream"]) != (battery, stream)]
            record["runs"] = sorted([*others, *runs], key=_order)
            _write(chosen.out, record)
    _write(chosen.out, record)
    if chosen.page:
        _write_page(chosen.page, record)
    return int(failed)


def plan(chosen: argparse.Namespace) -> dict[str, list[tuple[str, int]]]:
    """Return the streams that each battery reads, and the bytes of each, if it takes a size.

    Parameters
    ----------
    chosen : argparse.Namespace
        `battery` and `stream`, lists of names or None, and the flags `quick` and `long`.
    """
    batteries = chosen.battery or ["smallcrush", "practrand"]
    if not chosen.battery and not chosen.quick:
        batteries.append("dieharder")
    if not chosen.battery and chosen.long:
        batteries.append("crush")
    places = {}
    for battery in batteries:
        # dieharder takes a quarter of an hour for each.
        streams = ["sequential"] if battery == "dieharder" else list(STREAMS)
        places[battery] = [(one, _size(one, chosen)) for one in chosen.stream or streams]
    return places


def _size(stream: str, chosen: argparse.Namespace) -> int:
    if chosen.quick:
        return 64 * _MIB
    if chosen.long:
        return 32 * _GIB
    return 4 * _GIB if stream == "sequential" else _GIB


def tables(record: Record) -> str:
    """Return the results as Markdown, a table for each battery."""
    parts = []
    for battery in BATTERIES:
        runs = [run for run in record["runs"] if run["battery"] == battery]
        if runs:
            facts = sorted({f"- {run['version']}; {run['machine']}" for run in runs})
            rows = [_row(run) for run in runs]
            parts.append("\n".join([f"### {battery}\n", *facts, "", *_HEAD, *rows, ""]))
    parts += [f"*{name}* was skipped: {reason}.\n" for name, reason in record["skipped"].items()]
    return "\n".join(parts)


def _row(run: Record) -> str:
    test, p = run["extreme"]
    shown = f"1 - {1 - p:.2g}" if p > 0.99 else f"{p:.2g}"
    size = f"{run['bytes'] / _GIB:.3g} GiB" if run["bytes"] else ""
    cells = (run["stream"], run["seed"], size, run["tests"], f"{shown} `{test}`", run["verdict"])
    return "| " + " | ".join(map(str, (*cells, f"{run['seconds']:.0f} s", run["date"]))) + " |"


def _judge(battery: str, program: Path, stream: str, size: int, seed: int) -> list[Record]:
    """Run a battery on a stream, and again with another seed if a test is suspect."""
    first = _run(battery, program, stream, size, seed)
    if not first["suspect"]:
        return [first]
    again = _run(battery, program, stream, size, (seed + _AGAIN) % 2**64)
    first["verdict"] = "run again"
    if {test for test, _ in first["suspect"]} & {test for test, _ in again["suspect"]}:
        again["verdict"] = "FAILED"
    return [first, again]


def _run(name: str, program: Path, stream: str, size: int, seed: int) -> Record:
    battery = BATTERIES[name]
    command = [str(program), *battery.arguments(size)]
    print(f"{name} on {stream}, seed {seed} ... ", end="", flush=True)
    start = time.monotonic()
    emitter = [sys.executable, __file__, "--emit", stream, "--seed", str(seed)]
    with subprocess.Popen(emitter, stdout=subprocess.PIPE) as producer:
        done = subprocess.run(
            command, stdin=producer.stdout, capture_output=True, text=True, check=False
        )
    seconds = time.monotonic() - start
    findings = battery.findings(done.stdout)
    if producer.returncode != -signal.SIGPIPE or done.returncode != 0 or not findings:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise RuntimeError(f"{name} on {stream} did not end as it should:\n{tail}")
    extreme = min(findings, key=lambda finding: finding.extremity)
    print(
        f"{len(findings)} p-values, {extreme.p:.3g} ({extreme.test}), {seconds:.0f} s", flush=True
    )
    return {
        "battery": name,
        "version": battery.version(done.stdout),
        "stream": stream,
        "seed": seed,
        "bytes": size if battery.sized else None,
        "tests": len(findings),
        "extreme": extreme,
        "suspect": [finding for finding in findings if finding.extremity < SUSPECT],
        "verdict": "passed",
        "seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d"),
        "machine": _machine(),
    }


def _emit(stream: str, seed: int) -> None:
    """Write words to standard output until the reader closes it."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for words in STREAMS[stream](seed):
        sys.stdout.buffer.write(words.data)


def _machine() -> str:
    names = re.findall(r"^model name\s*: (.*)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    processor = names[0] if names else platform.machine()
    return f"nbrt {nbrt.__version__}, Python {platform.python_version()}, {processor}"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _order(run: Record) -> tuple[int, int]:
    return list(BATTERIES).index(run["battery"]), list(STREAMS).index(run["stream"])


def _write(out: Path, record: Record) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _write_page(page: Path, record: Record) -> None:
    streams = "\n".join(f"| {name} | {describe(name)} |" for name in STREAMS)
    results = f"| Stream | Description |\n|---|---|\n{streams}\n\n{tables(record)}\n"
    old = page.read_text(encoding="utf-8")
    new, count = _RESULTS.subn(lambda found: f"{found[1]}\n{results}", old)
    if count != 1:
        raise ValueError(f"expected one place for results in {page}, found {count}")
    page.write_text(new, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="statistical batteries over nbrt's random words")
    parser.add_argument("--stream", action="append", choices=STREAMS, help="this stream only")
    parser.add_argument("--battery", action="append", choices=BATTERIES, help="this battery only")
    parser.add_argument("--seed", type=int, default=_SEED, help="in [0, 2**64); 42 by default")
    parser.add_argument("--quick", action="store_true", help="64 MiB for PractRand, no dieharder")
    parser.add_argument("--long", action="store_true", help="32 GiB for PractRand, and Crush")
    parser.add_argument("--out", type=Path, default=Path("build/randtest.json"), metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="Markdown to put tables into")
    parser.add_argument("--emit", choices=STREAMS, help="write words to standard output instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
