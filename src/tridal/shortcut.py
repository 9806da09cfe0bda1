"""The shortest way into Triton's launcher: run-time arguments alone, straight to its compiled part.

Triton's own way passes a value for every constant of the source, and asks at each launch for scratch memory and hooks,
which our kernels have none of. What its compiled part wants between the stream and the arguments differs from version
to version, so it is taken from a launch that is recorded instead of made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


def shortcut(
    compiled: Any, launcher: Callable[[Any, Any], Any], programs: int, pointers: int, values: Sequence[int]
) -> Callable[..., None] | None:
    """launch(stream, *tensors) of a compiled kernel whose run-time arguments are `pointers` addresses, then `values`.

    `launcher` is the class of the driver's launchers. None if they are not made as expected: Triton's own way remains.
    """
    signature = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    run = launcher(SimpleNamespace(fn=compiled.src.fn, constants={}, signature=signature), compiled.metadata)
    scratch = [getattr(run, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    if not hasattr(run, "launch") or any(scratch):
        return None
    stream, addresses = object(), [object() for _ in range(pointers)]
    recorded: list[tuple[Any, ...]] = []
    enter, run.launch = run.launch, lambda *arguments: recorded.append(arguments)
    run(programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *addresses, *values)
    (given,) = recorded
    at = next(place for place, value in enumerate(given) if value is stream)
    before, after = given[:at], given[at + 1 :]
    expected = (*addresses, *values)
    if after[-len(expected) :] == expected:
        between = after[: -len(expected)]
        return lambda stream, *tensors: enter(*before, stream, *between, *[t.data_ptr() for t in tensors], *values)
    if after[-1] == expected:  # since 3.7 they are one tuple
        between = after[:-1]
        return lambda stream, *tensors: enter(*before, stream, *between, (*[t.data_ptr() for t in tensors], *values))
    return None
