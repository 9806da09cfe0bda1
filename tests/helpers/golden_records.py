"""What must not change unless somebody means it: declarations, kernels, plans, cases and bounds, in `tests/golden`.

After an intended change, write the files again and review the difference:

    python tests/helpers/golden_records.py
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import case_records
import golden_plans
import plan_records
import tridal
from call_helpers import written
from tridal.benchmarks import workloads
from tridal.benchmarks.op_benchmark import benchmark_of, measured_ops
from tridal.devices.types import KernelConfig
from tridal.ops import planning, table
from tridal.ops.column_sum import COLUMN_SUM
from tridal.runtime.scale_mask import ScaleMask
from tridal.testing.cases import op_cases

COMMAND = "python tests/helpers/golden_records.py"
_MASKED = ScaleMask(0.5, True, True, "uint8", 32, 2, (0, 781 * 32, 781, 1), row_distance=781)
_BACKENDS = "tridal_accelerator", "tridal_cuda", "tridal_interpreter", "tridal_npu", "tridal_rocm"
_NOT_IMPORTED = "tridal.__main__", "tridal.kernels", "tridal.runtime.target_program", "tridal.models.repository"
"""Programs, and schedules, whose names exist in a specialised kernel only."""


def declarations() -> dict[str, Any]:
    """Every op as data with its cases and its benchmark, every architecture, and the shapes of benchmarks."""
    found = {f"op {name}": _op(name) for name in table.ops()}
    for arch, (backend, device) in planning.architectures().items():
        found[f"architecture {arch}"] = {"backend": backend.name, **data(device)}
    shapes = {name: data(shape_class) for name, shape_class in workloads.SHAPE_CLASSES.items()}
    return {**found, COLUMN_SUM.name: data(COLUMN_SUM), "shape classes": shapes, "suites": data(workloads.SUITES)}


def _op(name: str) -> dict[str, Any]:
    op = table.ops()[name]
    found = {**data(op), "cases": data(op_cases(op))}
    if name in measured_ops():
        benchmark = benchmark_of(name)
        found["benchmark"] = {"functions": sorted(benchmark.functions)}
        found["benchmark"] |= {
            n: data(getattr(benchmark, n)) for n in ("tensors", "traffic", "aims", "suite", "gradients")
        }
    return found


def interface() -> dict[str, Any]:
    """The parameters and defaults of public functions and classes, and the numbers and tuples that modules name."""
    public: dict[str, str] = {}
    for module in (tridal, tridal.nn, tridal.ops, tridal.types, tridal.testing, tridal.settings, tridal.registry):
        for name in module.__all__:
            found = getattr(module, name)
            # Python replaces the constructor of a protocol when a subclass is instantiated first.
            if inspect.isroutine(found) or (inspect.isclass(found) and Protocol not in found.__mro__):
                with contextlib.suppress(ValueError):
                    public[f"{module.__name__}.{name}"] = parameters(found)
    constants = {}
    for package in (tridal, *(importlib.import_module(name) for name in _BACKENDS)):
        for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not entry.name.startswith(_NOT_IMPORTED):
                numbers = vars(importlib.import_module(entry.name)).items()
                named = {name: data(value) for name, value in numbers if name.isupper() and _is_plain(value)}
                constants |= {entry.name: named} if named else {}
    return {"parameters": public, "constants": constants}


def _is_plain(value: Any) -> bool:
    """Returns whether a value is a number, or a tuple without declarations, which have records of their own."""
    return type(value) in (int, float) or (type(value) is tuple and not any(map(is_dataclass, value)))


def parameters(function: Callable[..., Any]) -> str:
    """Returns the names of parameters with their defaults. "*" is before those that need a name."""
    named, found = False, []
    for parameter in inspect.signature(function).parameters.values():
        found += ["*"] * (parameter.kind is parameter.KEYWORD_ONLY and not named)
        named |= parameter.kind is parameter.KEYWORD_ONLY
        has_default = parameter.default is not parameter.empty
        found.append(f"{parameter.name}={data(parameter.default)}" if has_default else parameter.name)
    return ", ".join(found)


def data(value: Any) -> Any:
    """Returns a declaration as JSON data. Functions are their names. Fields with their defaults are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        entries = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: data(entry) for field, entry in entries if entry != field.default}
    if isinstance(value, Mapping):
        return {str(key): data(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [data(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, partial):
        return [data(value.func), data(value.args), data(value.keywords)]
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__


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
        ("softmax_backward", "float32", (64, 781), -1, replace(peel, rows=2)),
        ("softmax_backward", "float32", (8, 32_768), -1, replace(wide, persistent=False)),
        ("log_softmax", "float64", (64, 781), -1, once), ("cross_entropy", "float32", (64, 781), -1, tile),
        ("cross_entropy", "float32", (8, 32_768), -1, wide), ("cross_entropy", "float32", (64, 5000), -1, lanes),
        ("cross_entropy_backward", "float32", (64, 781), -1, once),
        ("layer_norm", "float32", (64, 781), -1, tile),
        ("layer_norm", "float32", (8, 781), -1, replace(row, reload=True)),
        ("layer_norm", "float32", (64, 5000), -1, replace(lanes, peel=True)),
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


RECORDS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "declarations": declarations, "interface": interface, "kernels": kernels, "plans": plan_records.plans,
    "conformance": case_records.conformance, "bounds": case_records.bounds,
}  # fmt: skip
"""What is recorded, by the name of its file."""


def file_of(name: str) -> Path:
    return golden_plans.FOLDER / f"{name}.{'txt' if name == 'kernels' else 'json'}"


def read(name: str) -> dict[str, Any]:
    """Returns the record in a file."""
    text = file_of(name).read_text()
    if name != "kernels":
        return json.loads(text)  # type: ignore[no-any-return]
    parts = (part.split("\n", 1) for part in text.split("## ")[1:])
    return {title: source.removesuffix("\n") for title, source in parts}


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yields one line for each part of two records that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from differences(old.get(key), new.get(key), f"{path}/{key}")
    elif old != new:
        yield f"{path}: {json.dumps(old)} -> {json.dumps(new)}"


def text_of(record: Mapping[str, Any], depth: int = 2) -> str:
    """Returns a record as JSON whose objects have a line per key, up to a depth."""
    entries = record.items() if depth else ()
    lines = (f"{json.dumps(k)}: {text_of(v, depth - 1) if isinstance(v, dict) else json.dumps(v)}" for k, v in entries)
    return "{\n" + ",\n".join(lines) + "\n}" if depth else json.dumps(record)


if __name__ == "__main__":
    for name, made in RECORDS.items():
        record = made()
        text = "".join(f"## {title}\n{source}\n" for title, source in record.items()) if name == "kernels" else ""
        file_of(name).write_text(text or text_of(record) + "\n")
        print(f"writes {file_of(name)}")
