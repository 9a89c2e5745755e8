"""``nbrt demo``: progress, tables, plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from nbrt.cli.demo.figures import draw_pictures, draw_timeline
from nbrt.cli.demo.pipeline import DemoResult, run_demo
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from nbrt.cli.demo.checks import DemoCheck

__all__ = ["show_demo"]

_DPI = 120


def show_demo(image: str | None, device: str | None, output: str, seed: int, sigma: float) -> int:
    """Run the demo, print its tables, save its plots; return 0 if every check passed."""
    console = Console()
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"expected a folder to write to, got {folder}: {error}") from error
    stages = Progress(
        SpinnerColumn(finished_text="[green]done[/]"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
    )
    with stages:

        def end() -> None:
            for task in stages.tasks:
                stages.update(task.id, completed=1)

        def begin(line: str) -> None:
            end()
            stages.add_task(line, total=1)

        result = run_demo(image, device=device, seed=seed, sigma=sigma, progress=begin)
        begin("plotting the results")
        draw_pictures(result).savefig(folder / "before_after.png", dpi=_DPI)
        title = f"nbrt demo on {result.device}: two streams"
        draw_timeline(result.steps, title).savefig(folder / "timeline.png", dpi=_DPI)
        end()
    console.print(_step_table(result))
    console.print(_check_table(result.checks))
    console.print(f"pictures: {folder / 'before_after.png'}, {folder / 'timeline.png'}")
    failed = [check.name for check in result.checks if not check.passed]
    if failed:
        console.print(f"[bold red]failed:[/] {', '.join(failed)}")
    return 1 if failed else 0


def _step_table(result: DemoResult) -> Table:
    height, width = result.original.shape[1:]
    title = f"{width} x {height} pixels in 3 planes on {result.device}"
    table = Table("step", "stream", title=title)
    for name in ("ms (events)", "GB/s", "peak memory"):
        table.add_column(name, justify="right")
    for step in result.steps:
        table.add_row(
            step.name,
            step.stream,
            f"{step.milliseconds:.3f}",
            f"{step.gigabytes_per_second:.2f}",
            f"{step.peak_bytes / 2**20:.1f} MiB",
        )
    return table


def _check_table(checks: tuple[DemoCheck, ...]) -> Table:
    table = Table("result", "compared with", "outcome", "", title="checks")
    for check in checks:
        status = "[green]pass[/]" if check.passed else "[bold red]FAIL[/]"
        table.add_row(check.name, check.against, check.outcome, status)
    return table
