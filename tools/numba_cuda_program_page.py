"""Write the page of results of ``numba_cuda_programs.py``."""

from __future__ import annotations

import platform
import re
import textwrap
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
_MODES = ("simulator", "nbrt_cold", "nbrt_warm")
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
- Random numbers have the same seed in both runs. Column "Limits" is for the simulator: a test that
  runs longer than the first number of seconds fails with the message "Timeout", and no test starts
  after the second.
- Cold: the cache of compiled code is empty. Warm: a second process uses the code of the first.
- Times are the processor time of the process, all threads together, summed over the tests that pass
  in both runs, without imports: other work ran on the machine during the runs. The simulator's
  threads run one at a time; those of nbrt run on all cores, so that its wall time is shorter.
- What a test does besides its kernels counts too, such as a reference in Python. For tests of a few
  elements that is most of the time, and for nbrt cold it is the compilation.
"""


def passed(result: Result, mode: str) -> set[str]:
    """Return the names of the tests that passed in a mode."""
    return {name for name, test in result[mode]["tests"].items() if test["outcome"] == "passed"}


def regressions(result: Result) -> list[str]:
    """Return the tests that pass under the simulator and ran under nbrt without passing."""
    if not result["nbrt_cold"]["tests"]:
        return []
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
    programs = [p for p in PROGRAMS if results[p.name]["nbrt_cold"]["tests"]]
    lines = [_HEAD, *_machine(), "", *_table(programs, results)]
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
        "| nbrt warm, s | Cold / simulator | Warm / simulator | Limits, s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    ratios: dict[str, list[float]] = {"nbrt_cold": [], "nbrt_warm": []}
    totals = dict.fromkeys(_MODES, 0.0)
    for program in programs:
        result = results[program.name]
        counts = [
            str(len(_ran(result))),
            *(
                str(len(passed(result, m))) if result[m]["tests"] else "not run"
                for m in _MODE_NAMES
            ),
            str(len(regressions(result))),
        ]
        times = dict(zip(_MODES, _times(result), strict=True))
        if all(times.values()):
            totals = {mode: totals[mode] + times[mode] for mode in _MODES}
        # A mode that has not run, or no test that passes in both, gives no times.
        shown = [f"{times[m]:.1f}" if times[m] and times["simulator"] else "-" for m in _MODES]
        for mode, values in ratios.items():
            known = times[mode] and times["simulator"]
            shown.append(f"{times[mode] / times['simulator']:.3f}" if known else "-")
            values += [times[mode] / times["simulator"]] if known else []
        limits = [str(result["simulator"].get(name, "-")) for name in ("test_limit", "limit")]
        row = " | ".join([program.name, *counts, *shown, ", ".join(limits)])
        lines.append(f"| {row} |")
    means = [
        f"{sum(values) / len(values):.3f} {mode.removeprefix('nbrt_')} ({len(values)} programs)"
        for mode, values in ratios.items()
        if values
    ]
    lines += ["", f"Mean of the programs' ratios: {', '.join(means)}."] if means else []
    if totals["simulator"]:
        whole = ", ".join(
            f"{totals[mode]:.1f} s {mode.removeprefix('nbrt_')} "
            f"({totals[mode] / totals['simulator']:.3f} of the simulator's)"
            for mode in ratios
        )
        lines += [
            "",
            _wrapped(f"All together: {totals['simulator']:.1f} s under the simulator, {whole}."),
        ]
    return [*lines, "", "Lost: tests that pass under the simulator and not under nbrt."]


def _passes(result: Result, mode: str) -> str:
    return str(len(passed(result, mode))) if result[mode]["tests"] else "not run"


def _ran(result: Result) -> set[str]:
    return {
        name
        for mode in _MODE_NAMES
        for name, test in result[mode]["tests"].items()
        if test["outcome"] != "skipped"
    }


def _section(program: Program, result: Result) -> list[str]:
    link = f"[{program.name}](https://github.com/{program.name}/tree/{program.commit})"
    text = f"{link} at `{program.commit[:12]}`: {program.runs}."
    if program.stand_ins:
        text += f" Stand-ins: {', '.join(program.stand_ins)}."
    lines = [f"### {program.name}", "", _wrapped(text)]
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
        lines += ["", _wrapped(f"Lost: {', '.join(f'`{_short(name)}`' for name in lost)}.")]
    not_run = {
        name: len(_ran(result) - result[mode]["tests"].keys())
        for mode, name in _MODE_NAMES.items()
        if result[mode]["tests"]
    }
    lines += [
        f"\n{count} tests did not start under {name}: the time was up."
        for name, count in not_run.items()
        if count
    ]
    return lines


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


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
