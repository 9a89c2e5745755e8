"""Which of the names of held memory a person wants to read."""

from __future__ import annotations

import re

__all__ = ["chosen"]

_TOOLS = r"(IPython|ipykernel|traitlets|_pytest|pluggy|xdist|execnet)"
_OF_TOOLS = re.compile(
    rf"{_TOOLS}\.|.*, a local of .*[/\\]{_TOOLS}[/\\]"
    r"|.*, (which nothing with a name holds|one of very many)$"
    r"|(.*\.)?displayhook\."
    r"|.*(\['last_execution_result'\]|\['output_hist'\]|\.user_ns_hidden\[)"
)
"""What runs a program holds what it holds only because the program does, or until it goes on."""

_ALIAS = re.compile(r"(_{1,3}|_\d+), a global of __main__")
_RESULT = re.compile(r"Out\[\d+\], a global of __main__")


def chosen(names: list[str]) -> list[str]:
    """Return the names that are the program's own, unless there are none, each once.

    Of IPython's many names for the result of a cell one is left.

    Examples
    --------
    >>> chosen(["_, a global of __main__", "_oh[3], a global of __main__"])
    ['Out[3], a global of __main__; release_tracebacks(outputs=True) lets go of it']
    """
    own = [name for name in names if not _OF_TOOLS.match(name)] or names
    own = list(dict.fromkeys(re.sub(r"^_oh\[", "Out[", name) for name in own))
    results = [name for name in own if _RESULT.fullmatch(name)]
    if not results:
        return own
    others = [name for name in own if name not in results and not _ALIAS.fullmatch(name)]
    hint = "" if others else "; release_tracebacks(outputs=True) lets go of it"
    return [*(f"{name}{hint}" for name in results), *others]
