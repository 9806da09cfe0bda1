"""What must not change unless somebody means it, in `tests/golden`: kernels, parameters of functions, numbers of cases.

After an intended change, write the files again and review the difference:

    python tests/helpers/golden_records.py
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

import golden_plans
import tridal
from call_helpers import written
from tridal.devices.types import FEATURES, ITEMSIZE, SCHEDULES, KernelConfig
from tridal.runtime.scale_mask import ScaleMask
from tridal.testing.suite import cases

COMMAND = "python tests/helpers/golden_records.py"
_MASKED = ScaleMask(0.5, True, True, "uint8", 32, 2, (0, 781 * 32, 781, 1), row_distance=781)


def interface() -> dict[str, str]:
    """The parameters and defaults of public functions and classes."""
    public: dict[str, str] = {}
    for module in (tridal, tridal.nn, tridal.ops, tridal.types, tridal.testing, tridal.settings, tridal.registry):
        for name in module.__all__:
            found = getattr(module, name)
            # Python replaces the constructor of a protocol when a subclass is instantiated first.
            if inspect.isroutine(found) or (inspect.isclass(found) and Protocol not in found.__mro__):
                with contextlib.suppress(ValueError):
                    public[f"{module.__name__}.{name}"] = ", ".join(_parameters(found))
    return public


def _parameters(function: Callable[..., Any]) -> Iterator[str]:
    """Yields the names of parameters with their defaults. "*" is before those that need a name."""
    named = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        default = parameter.default
        if default is parameter.empty:
            yield parameter.name
        else:
            plain = default is None or isinstance(default, (bool, int, float, str))
            yield f"{parameter.name}={default if plain else '...'}"


def conformance() -> dict[str, int]:
    """The number of conformance cases by op and direction, for a backend with every feature."""

    class AllFeatures:
        dtypes = frozenset(ITEMSIZE) - {"int64", "uint8"}
        schedules, features = frozenset(SCHEDULES), frozenset(FEATURES)
        device_type = "cpu"

        def device_count(self) -> int:
            return 2

    backend: Any = AllFeatures()
    return Counter(f"{case.op} {case.direction}" for case in cases(backend))


def kernels() -> dict[str, str]:
    """The text of written kernels, by kernel, dtype, shape and plan: each schedule with each of its features."""
    return dict(_kernels())


def _kernels() -> Iterator[tuple[str, str]]:
    wide = KernelConfig("cooperative", 1, 2048, 8, programs_per_row=16)
    row, tile = KernelConfig("whole_row", 1, 1024), KernelConfig("whole_row", 4, 1024)
    once, peel = replace(row, persistent=False), replace(row, peel=True)
    lanes = KernelConfig("column_loop", 1, 256, 1, lanes=32)
    rows: list[tuple[str, str, tuple[int, ...], int, KernelConfig]] = [
        ("softmax", "float32", (64, 781), -1, once), ("softmax", "float32", (64, 781), -1, peel),
        ("softmax", "bfloat16", (64, 768), -1, tile), ("softmax", "float32", (3, 300, 33), 1, replace(tile, rows=8)),
        ("softmax", "float32", (8, 32_768), -1, wide), ("softmax", "float32", (64, 5000), -1, lanes),
        ("softmax", "float32", (5000, 64), 0, replace(lanes, rows=32, programs_per_row=8)),
        ("softmax_backward", "float32", (64, 781), -1, replace(peel, rows=2)),
        ("softmax_backward", "float32", (8, 32_768), -1, replace(wide, persistent=False)),
        ("log_softmax", "float64", (64, 781), -1, once), ("cross_entropy", "float32", (64, 781), -1, tile),
        ("cross_entropy", "float32", (8, 32_768), -1, wide), ("cross_entropy", "float32", (64, 5000), -1, lanes),
        ("cross_entropy_backward", "float32", (64, 781), -1, once),
        ("layer_norm", "float32", (64, 781), -1, tile),
        ("layer_norm", "float32", (8, 781), -1, replace(row, reload=True)),
        ("layer_norm", "float32", (64, 5000), -1, replace(lanes, peel=True)),
        ("cross_entropy", "float32", (64, 5000), -1, replace(lanes, peel=True, persistent=False)),
        ("layer_norm_backward", "float32", (64, 781), -1, replace(row, num_stages=3)),
        ("layer_norm_backward", "float32", (64, 5000), -1, replace(lanes, lanes=1, rows=2)),
        ("rms_norm", "float32", (8, 32_768), -1, replace(wide, peel=True)), ("swiglu", "float32", (64, 781), -1, once),
        ("rms_norm_backward", "float32", (8, 32_768), -1, wide),
        ("column_sum", "float32", (64, 768), 0, replace(tile, rows=8)),
        ("log_probs_backward", "float32", (64, 781), -1, once), ("swiglu_backward", "float32", (64, 781), -1, peel),
    ]  # fmt: skip
    for name, dtype, shape, dim, config in rows:
        call = golden_plans.Question("", name, dtype, shape, dim).call
        changed = [f"{f.name}={value!r}" for f in fields(config)[3:] if (value := getattr(config, f.name)) != f.default]
        tile_of = f"{config.schedule} {config.rows}x{config.cols}"
        yield " ".join([name, dtype, "x".join(map(str, shape)), tile_of, *changed]), written(call, config).text
    masked = replace(golden_plans.Question("", "softmax", "float32", (64, 781)).call, scale_mask=_MASKED)
    yield "softmax masked", written(masked, tile).text


RECORDS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "interface.json": interface, "kernels.txt": kernels, "conformance.json": conformance,
}  # fmt: skip
"""What is recorded, by the name of its file."""


def text_of(name: str) -> str:
    """Returns the text of a file: printed kernels, or JSON with a line per entry."""
    record = RECORDS[name]()
    if name.endswith(".txt"):
        return "".join(f"## {title}\n{source}\n" for title, source in record.items())
    return json.dumps(record, indent=0) + "\n"


if __name__ == "__main__":
    for name in RECORDS:
        file = golden_plans.FOLDER / name
        file.write_text(text_of(name))
        print(f"writes {file}")
