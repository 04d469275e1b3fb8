"""Compiles functions with numba if it is installed. Without it, the same code runs as plain Python, slowly."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final, TypeVar

HAVE_NUMBA: Final = importlib.util.find_spec("numba") is not None
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The compiled function. Compiled code is kept on disk, so that workers do not compile again."""
    if not HAVE_NUMBA:
        return function
    import numba

    made: Any = numba.njit(cache=True)(function)
    return made  # type: ignore[no-any-return]  # called like the function that it was made from
