"""Functions whose source is generated, because a loop over the tensors of a call takes twice the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def generated(name: str, parameters: str, lines: Iterable[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """Compiles `def name(parameters)` with these lines. `scope` has the global names of the function."""
    body = "\n".join(lines).replace("\n", "\n    ")
    exec(f"def {name}({parameters}):\n    {body}\n", scope)
    return scope[name]  # type: ignore[no-any-return]
