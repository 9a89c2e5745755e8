"""Numba's environments: objects that a compiled function keeps its Python constants in."""

from __future__ import annotations

from typing import Any

from numba.core.environment import lookup_environment

__all__ = ["with_environments"]

_PREFIX = "_ZN08NumbaEnv"
"""How the names of variables begin that point to a function's environment."""


def with_environments(result: Any) -> Any:
    """Give compiled code the environments of the functions in it, and keep them alive with it.

    Numba does that for functions with machine code of their own. Printing a number needs one, and
    where it is missing leaves the kernel without giving the interpreter's lock back.

    Parameters
    ----------
    result : numba CompileResult
        Of a function that Python calls.

    Returns
    -------
    numba CompileResult
        The same, which holds the environments.
    """
    environments = []
    for variable in result.library._final_module.global_variables:
        if variable.name.startswith(_PREFIX):
            environment = lookup_environment(variable.name)
            if environment is not None:
                result.library.codegen.set_env(variable.name, environment)
                environments.append(environment)
    return result._replace(referenced_envs=tuple(environments))
