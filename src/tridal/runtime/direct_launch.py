"""Direct launches: call the compiled part of Triton's launcher with run-time arguments only.

Triton's launcher takes a value for every constant of the kernel, and looks for scratch memory and hooks at each launch.
Kernels here have neither, so a direct launch saves that host time. The arguments of the compiled part differ between
Triton versions. They are found by recording one call of the launcher, which launches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

Count: TypeAlias = Callable[[int], int]
"""count(rows) returns a number of a launch for a number of rows."""


class _Grid(int):
    """A number of programs that is recognized by its identity."""


def direct_launch(
    compiled: Any,
    launcher: Callable[[Any, Any], Any],
    programs: int | Count,
    pointers: int,
    values: Sequence[int | Count],
) -> tuple[Callable[..., None], Callable[..., None]] | None:
    """Makes by_tensor(stream, rows, *tensors) and by_address(stream, rows, *addresses), which launch a kernel.

    The kernel has `pointers` tensor arguments, then `values`. `programs` and `values` are numbers, or functions of
    `rows`. `launcher` is the driver's launcher class. Returns None for an unknown launcher or a kernel with scratch
    memory.
    """
    signature = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    run = launcher(SimpleNamespace(fn=compiled.src.fn, constants={}, signature=signature), compiled.metadata)
    scratch = [getattr(run, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    if not hasattr(run, "launch") or any(scratch):
        return None
    stream, grid, addresses = object(), _Grid(1), [object() for _ in range(pointers)]
    numbers = [0 if callable(value) else value for value in values]
    recorded: list[tuple[Any, ...]] = []
    enter, run.launch = run.launch, lambda *arguments: recorded.append(arguments)
    try:
        run(grid, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *addresses, *numbers)
        (passed,) = recorded
    except Exception:  # a launcher that reads its arguments, or launches more than once
        return None
    expected = (*addresses, *numbers)
    flat = passed[-len(expected) :] == expected
    first = passed[: -len(expected)] if flat else passed[:-1]
    places = sum(value is stream for value in first), sum(value is grid for value in first)
    if places != (1, 1) or not (flat or passed[-1] == expected):  # since Triton 3.7, the arguments are one tuple
        return None
    # The lambda names each argument, because unpacking a tuple takes 0.3 us more per launch.
    before = {f"before_{index}": value for index, value in enumerate(first)}
    after = {f"after_{index}": value for index, value in enumerate(values)}
    given = [f"given_{index}" for index in range(pointers)]
    known = {id(stream): "stream", id(grid): _source("programs", programs)}
    names = [known.get(id(value), name) for name, value in before.items()]
    scope = {"enter": enter, "programs": programs, **before, **after}

    def launch(address: str) -> Any:
        last = [*(f"{name}{address}" for name in given), *(_source(name, value) for name, value in after.items())]
        passed = [*names, *last] if flat else [*names, f"({', '.join(last)},)"]
        return eval(f"lambda stream, rows, {', '.join(given)}: enter({', '.join(passed)})", scope)

    return launch(".data_ptr()"), launch("")


def _source(name: str, value: int | Count) -> str:
    """The source of an argument: its name, or a call of it with the rows."""
    return f"{name}(rows)" if callable(value) else name
