"""Statistical batteries of other projects: sources, commands, and parsers of their output.

PractRand and TestU01 are fetched at a pinned commit and built below ``~/.cache/nbrt/batteries``, or
``nbrt/batteries`` in ``$XDG_CACHE_HOME``; dieharder is the package of that name. All of them read
32-bit words from standard input.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BATTERIES", "Battery", "Finding", "Source", "UnavailableError", "build", "cache_folder"]

_DRIVER = Path(__file__).with_name("testu01_stdin.c")


class UnavailableError(Exception):
    """A battery is not available on this machine; the message gives the reason."""


class Finding(NamedTuple):
    """A test of a battery and its p-value."""

    test: str
    p: float

    @property
    def extremity(self) -> float:
        """Distance of p from the nearer end of [0, 1]; both ends are failures."""
        return min(self.p, 1 - self.p)


class Source(NamedTuple):
    """Sources of a battery at a pinned commit, and the commands that build its program.

    Attributes
    ----------
    name, version, url, commit : str
        Origin, name and version.
    program : str
        The program to build, relative to the folder of the sources.
    steps : tuple of tuple of str
        Commands that build it there; ``{here}`` stands for that folder.
    """

    name: str
    version: str
    url: str
    commit: str
    program: str
    steps: tuple[tuple[str, ...], ...]


class Battery(NamedTuple):
    """A battery that reads words from standard input.

    Attributes
    ----------
    source : Source or str
        The sources of its program, or the name of an installed program.
    arguments : callable
        ``(size) -> list of str``: arguments after the program; `size` is in bytes, for a battery
        that can be told how much to read.
    findings : callable
        ``(output) -> list of Finding``.
    sized : bool
        Whether it takes a size.
    """

    source: Source | str
    arguments: Callable[[int], list[str]]
    findings: Callable[[str], list[Finding]]
    sized: bool = False

    def program(self) -> Path:
        """Return the program, built if need be.

        Raises
        ------
        UnavailableError
            If it is not available.
        """
        if isinstance(self.source, Source):
            return build(self.source)
        found = shutil.which(self.source)
        if found is None:
            raise UnavailableError(
                f"{self.source} is not installed; install the package of that name"
            )
        return Path(found)

    def version(self, output: str) -> str:
        """Return name, version and commit, given what the program printed."""
        if isinstance(self.source, Source):
            return f"{self.source.name} {self.source.version}, commit {self.source.commit[:12]}"
        found = re.search(rf"{self.source} version (\S+)", output)
        return f"{self.source} {found[1] if found else '(unknown version)'}"


def cache_folder() -> Path:
    """Return the folder below which batteries are built."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "nbrt" / "batteries"


def build(source: Source) -> Path:
    """Return a program, built from its sources unless it was before.

    Raises
    ------
    UnavailableError
        If the sources cannot be fetched or built.
    """
    folder = cache_folder() / f"{source.name}-{source.commit[:12]}"
    program = folder / source.program
    if program.exists():
        return program
    print(f"    building {source.name} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run(("git", "clone", "--quiet", "--no-checkout", source.url, str(folder)), folder.parent)
    _run(("git", "checkout", "--quiet", source.commit), folder)
    for step in source.steps:
        _run(tuple(part.format(here=folder) for part in step), folder)
    return program


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UnavailableError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        raise UnavailableError(f"'{' '.join(command[:2])}' failed: {reason}")


def _practrand_findings(output: str) -> list[Finding]:
    """Read lines such as ``Gap-16:A  R= -0.5  p =1-2.3e-5  unusual``."""
    pattern = re.compile(
        r"^ +(\S+) +(?:R\S* *\S* +)?(?:p ?[~=]=? *(1-)? *([\d.e+-]+)|\"(pass|fail)\")"
    )
    findings = []
    for line in output.splitlines():
        if found := pattern.match(line):
            test, upper, number, verdict = found.groups()
            if verdict is not None:
                findings.append(Finding(test, 0.5 if verdict == "pass" else 0.0))
            else:
                findings.append(Finding(test, 1 - float(number) if upper else float(number)))
    return findings


def _testu01_findings(output: str) -> list[Finding]:
    """Read the lines of ``testu01_stdin.c``; p is negative where nothing was computed."""
    rows = [line.split("\t") for line in output.splitlines() if line.startswith("statistic\t")]
    return [Finding(name, float(p)) for _, name, p in rows if float(p) >= 0]


def _dieharder_findings(output: str) -> list[Finding]:
    """Read lines such as ``sts_serial| 4| 100000| 100|0.61729484|  PASSED``."""
    rows = [[part.strip() for part in line.split("|")] for line in output.splitlines()]
    return [
        Finding(f"{row[0]} {row[1]}", float(row[4]))
        for row in rows
        if len(row) == 6 and row[1].isdigit()
    ]


def _practrand_arguments(size: int) -> list[str]:
    length = f"{size >> 20}MB"
    return ["stdin32", "-a", "-tlmin", length, "-tlmax", length]


_PRACTRAND = Source(
    name="PractRand",
    version="0.95-planet36",
    url="https://github.com/planet36/PractRand",
    commit="cca6791b1b09b04e83cf757ad319e65e6b96f95d",
    program="tools/RNG_test",
    steps=(("make", "-s", "tools/RNG_test"),),
)
_COMPILE = ("cc", "-O2", "-I{here}/installed/include", "-L{here}/installed/lib")
_LIBRARIES = ("-ltestu01", "-lprobdist", "-lmylib", "-lm")
_TESTU01 = Source(
    name="TestU01",
    version="1.2.3",
    url="https://github.com/umontreal-simul/TestU01-2009",
    commit="a038a868755a75fca4ca8734031335aa0a7f7bcb",
    program="testu01_stdin",
    steps=(
        ("sh", "./configure", "--quiet", "--disable-shared", "--prefix={here}/installed"),
        ("make", "-s", "install"),
        (*_COMPILE, "-o", "testu01_stdin", str(_DRIVER), *_LIBRARIES),
    ),
)

BATTERIES: dict[str, Battery] = {
    "smallcrush": Battery(_TESTU01, lambda _: ["SmallCrush"], _testu01_findings),
    "practrand": Battery(_PRACTRAND, _practrand_arguments, _practrand_findings, sized=True),
    "dieharder": Battery("dieharder", lambda _: ["-g", "200", "-a"], _dieharder_findings),
    "crush": Battery(_TESTU01, lambda _: ["Crush"], _testu01_findings),
}
"""Every battery by name, the quick ones first."""
