"""``%nbrt_warm`` and ``%%nbrt_warm``: `warm` for a line or a cell of a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentError
from nbrt.planning.warm import warm

if TYPE_CHECKING:
    from nbrt.planning.warm_result import WarmResult

__all__ = ["load_extension"]

_OPTIONS = ("targets", "device", "devices", "reads", "workers")


def load_extension(shell: Any) -> None:
    """Add the magics to a shell of IPython."""
    from IPython.core.magic import Magics, line_cell_magic, magics_class

    @magics_class
    class WarmMagics(Magics):
        """The magics of nbrt."""

        @line_cell_magic
        def nbrt_warm(self, line: str, cell: str | None = None) -> WarmResult:
            """Compile all kernels that a statement or cell launches; see `nbrt.warm`.

            %nbrt_warm [--targets H100,L4] [--device D] [--devices N] [--reads zeros] [--workers N]
            statement

            The code runs on fake devices. The variables that it names are fake arrays, and what it
            assigns is dropped.
            """
            names = [f"{option}=" for option in _OPTIONS]
            # "posix": quotes and backslashes of the statement remain.
            given, statement = self.parse_options(
                line, "", *names, posix=False, preserve_non_opts=True
            )
            code = statement if cell is None else cell
            if cell is not None and statement.strip():
                raise ArgumentError(f"expected options before a cell, got {statement!r}")
            return _warm_code(self.shell, code, _checked(given))

    shell.register_magics(WarmMagics)


def _checked(given: Any) -> dict[str, Any]:
    """Return the options of `warm` by the texts of those of a magic."""
    options: dict[str, Any] = dict(given)
    if "targets" in options:
        options["targets"] = tuple(filter(None, options["targets"].split(",")))
    for name in ("devices", "workers"):
        if name in options:
            try:
                options[name] = int(options[name])
            except ValueError:
                raise ArgumentError(
                    f"expected a number for --{name}, got {options[name]!r}"
                ) from None
    return options


def _warm_code(shell: Any, source: str, options: dict[str, Any]) -> WarmResult:
    """Run `warm` on code, in a copy of the namespace of a shell."""
    text = shell.transform_cell(source)
    # Under a name of a cell, which tracebacks and call sites show.
    code = compile(text, shell.compile.cache(text, shell.execution_count), "exec")

    names = shell.user_ns
    used = {name: names[name] for name in code.co_names if name in names}
    return warm(lambda fakes: exec(code, names | fakes), used, **options)
