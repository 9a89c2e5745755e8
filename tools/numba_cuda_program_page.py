"""Write the page of results of ``numba_cuda_programs.py``."""

from __future__ import annotations

import platform
import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba_cuda_program_list import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numba_cuda_program_list import Program

    Result = Mapping[str, Any]

__all__ = ["passed", "regressions", "write_page"]

_PACKAGES = ("numba", "numba-cuda", "numpy")
_MODE_NAMES = {"simulator": "simulator", "nbrt_cold": "nbrt"}
_MAX_MESSAGE = 150

_HEAD = """# Public programs for numba.cuda

<!-- Written by tools/numba_cuda_programs.py. Do not edit. -->

Public programs that use `numba.cuda`, unchanged, with `NBRT_NUMBA_CUDA=1` and with numba-cuda's
simulator (`NUMBA_ENABLE_CUDASIM=1`). `python tools/numba_cuda_programs.py fetch`, `run` and `page`
repeat the runs and write this page. The program is fetched from its public repository at the commit
below; none of its code is part of nbrt.

- A program runs its own tests where these need no other GPU library. Else a test file in
  `tools/numba_cuda_program_drivers` runs its kernels and compares with NumPy, with the program's
  functions for CPUs, or with the simulator.
- Programs that keep their data in CuPy's arrays, in cuDF or in torch's CUDA tensors get a stand-in
  in host memory for that library, the same in both runs.
- Random numbers have the same seed in both runs. A test that runs longer under the simulator than
  its limit (column "Limit") fails there with the message "Timeout", and no test of a program starts
  under the simulator after {limit} s.
- Cold: the cache of compiled code is empty. Warm: a second process uses the code of the first.
- Times are the processor time of the process, all threads together, summed over the tests that pass
  in both runs, without imports: other work ran on the machine during the runs. The simulator's
  threads run one at a time; those of nbrt run on all cores, so that its wall time is shorter.
"""


def passed(result: Result, mode: str) -> set[str]:
    """Return the names of the tests that passed in a mode."""
    return {name for name, test in result[mode]["tests"].items() if test["outcome"] == "passed"}


def regressions(result: Result) -> list[str]:
    """Return the tests that pass under the simulator and ran under nbrt without passing."""
    return sorted(passed(result, "simulator") - passed(result, "nbrt_cold"))


def write_page(page: Path, results: Mapping[str, Result]) -> None:
    """Write the page.

    Parameters
    ----------
    page : Path
        The file.
    results : mapping
        The results of each program by mode, as ``run`` saves them.
    """
    programs = [program for program in PROGRAMS if program.name in results]
    limit = max(program.limit for program in programs)
    lines = [_HEAD.format(limit=limit), *_machine(), "", *_table(programs, results)]
    lines += ["", "## What runs and what fails"]
    for program in programs:
        lines += ["", *_section(program, results[program.name])]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _machine() -> list[str]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"model name\s*:\s*(.+)", text)
    vectors = sorted(set(re.findall(r"\bavx\w*", text)), key=len)
    cores = len(re.findall(r"^processor", text, re.MULTILINE))
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return [
        f"Machine: {model[1] if model else 'unknown processor'}, {cores} cores, "
        f"{' and '.join(vectors)}. Python {platform.python_version()}, {packages}."
    ]


def _seconds(result: Result, mode: str, names: Iterable[str]) -> float:
    tests = result[mode]["tests"]
    return float(sum(tests[name]["cpu_seconds"] for name in names if name in tests))


def _times(result: Result) -> tuple[float, float, float]:
    both = passed(result, "simulator") & passed(result, "nbrt_cold")
    cold, warm = (_seconds(result, mode, both) for mode in ("nbrt_cold", "nbrt_warm"))
    return _seconds(result, "simulator", both), cold, warm


def _table(programs: list[Program], results: Mapping[str, Result]) -> list[str]:
    lines = [
        "| Program | Tests | Pass, simulator | Pass, nbrt | Lost | Simulator, s | nbrt cold, s "
        "| nbrt warm, s | Cold / simulator | Warm / simulator | Limit, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    sums, cold_ratios, warm_ratios = [0.0, 0.0, 0.0], [], []
    counts = [0, 0, 0, 0]
    for program in programs:
        result = results[program.name]
        times = _times(result)
        numbers = [
            len(_ran(result)),
            len(passed(result, "simulator")),
            len(passed(result, "nbrt_cold")),
            len(regressions(result)),
        ]
        counts = [a + b for a, b in zip(counts, numbers, strict=True)]
        ratios = "- | -"
        if times[0] > 0:
            sums = [a + b for a, b in zip(sums, times, strict=True)]
            cold_ratios.append(times[1] / times[0])
            warm_ratios.append(times[2] / times[0])
            ratios = f"{cold_ratios[-1]:.3f} | {warm_ratios[-1]:.3f}"
        row = " | ".join([*map(str, numbers), *(f"{t:.1f}" for t in times)])
        lines.append(f"| {program.name} | {row} | {ratios} | {program.test_limit} |")
    row = " | ".join([*map(str, counts), *(f"{t:.1f}" for t in sums)])
    ratios = f"{sums[1] / sums[0]:.3f} | {sums[2] / sums[0]:.3f}" if sums[0] else "- | -"
    lines.append(f"| All | {row} | {ratios} | |")
    if cold_ratios:
        cold, warm = (sum(r) / len(r) for r in (cold_ratios, warm_ratios))
        lines += ["", f"Mean of the programs' ratios: {cold:.3f} cold, {warm:.3f} warm."]
    return [*lines, "", "Lost: tests that pass under the simulator and not under nbrt."]


def _ran(result: Result) -> set[str]:
    return {
        name
        for mode in _MODE_NAMES
        for name, test in result[mode]["tests"].items()
        if test["outcome"] != "skipped"
    }


def _section(program: Program, result: Result) -> list[str]:
    link = f"[{program.name}](https://github.com/{program.name}/tree/{program.commit})"
    lines = [f"### {program.name}", "", f"{link} at `{program.commit[:12]}`: {program.runs}."]
    if program.stand_ins:
        lines.append(f"Stand-ins: {', '.join(program.stand_ins)}.")
    rows = [
        (name, count, message)
        for mode, name in _MODE_NAMES.items()
        for message, count in _failures(result, mode).most_common()
    ]
    if rows:
        lines += ["", "| Run | Tests | Failure |", "|---|--:|---|"]
        lines += [f"| {name} | {count} | {message} |" for name, count, message in rows]
    lost = regressions(result)
    if lost:
        lines += ["", f"Lost: {', '.join(f'`{_short(name)}`' for name in lost)}."]
    not_run = {
        name: len(_ran(result) - result[mode]["tests"].keys()) for mode, name in _MODE_NAMES.items()
    }
    lines += [
        f"\n{count} tests did not start under {name}: the time was up."
        for name, count in not_run.items()
        if count
    ]
    return lines


def _failures(result: Result, mode: str) -> Counter[str]:
    messages = [t["message"] for t in result[mode]["tests"].values() if t["outcome"] == "failed"]
    return Counter(map(_clean, messages))


def _clean(message: str) -> str:
    """Return the first telling line of a message, without what differs from test to test."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no message"]
    text = re.sub(r"tid=\[.*?\] ctaid=\[.*?\]:? *", "", lines[0])
    text = re.sub(r"/\S+/(\w+\.py)", r"\1", re.sub(r"0x[0-9a-f]+", "0x…", text))
    text = text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE].rstrip() + " …"
    return f"`{text.replace('|', chr(92) + '|').replace('`', '')}`"


def _short(name: str) -> str:
    return name.rpartition("::")[2]
