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
    expected = (*addresses, *values)
    flat = given[-len(expected) :] == expected
    first = given[: -len(expected)] if flat else given[:-1]
    if stream not in first or not (flat or given[-1] == expected):  # since 3.7 they are one tuple
        return None
    # An expression that names each argument: to unpack them at every call takes .3 microseconds more.
    before = {f"before_{place}": value for place, value in enumerate(first)}
    after = {f"after_{place}": value for place, value in enumerate(values)}
    tensors = [f"tensor_{place}" for place in range(pointers)]
    names = ["stream" if value is stream else name for name, value in before.items()]
    last = [*(f"{tensor}.data_ptr()" for tensor in tensors), *after]
    names += last if flat else [f"({', '.join(last)},)"]
    source = f"lambda stream, {', '.join(tensors)}: enter({', '.join(names)})"
    return eval(source, {"enter": enter, **before, **after})  # type: ignore[no-any-return]
