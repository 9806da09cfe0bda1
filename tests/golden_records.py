"""What must not change unless somebody means it: declarations, kernels, plans, cases and bounds, in `tests/golden`.

After an intended change, write the files again and review the difference:

    python tests/golden_records.py
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import case_records
import golden_plans
import plan_records
import tridal
from case_records import checksum
from tridal.benchmarks import workloads
from tridal.benchmarks.op_benchmark import benchmark_of, measured_ops
from tridal.devices.types import KernelConfig, LaunchPlan
from tridal.ops import planning, table
from tridal.ops.column_sum import COLUMN_SUM
from tridal.runtime import batch_invariance, compiler
from tridal.runtime.op_trial import COLS, ROWS
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import Specialization
from tridal.testing.cases import op_cases
from tridal.testing.plan_overrides import PLAN_OVERRIDES

COMMAND = "python tests/golden_records.py"
_FULL = ("softmax", "softmax_backward", "layer_norm_backward", "cross_entropy")
"""Kernels of one tensor, of two, with sums of columns, and with an index per row. They have all overrides of plans."""
_FEW = ("planned", "column_loop", "cooperative+reload")
_MASKED = ScaleMask(0.5, True, True, "uint8", 32, 2, (0, 781 * 32, 781, 1), row_distance=781)
_BIASED = -5.5e-08
"""An error of exp2, for which kernels have further steps."""
_WIDE = KernelConfig("cooperative", 1, 2048, 8, programs_per_row=128, exp2_bias=_BIASED)
"""So many programs of a row read their numbers in several steps."""
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


def kernels() -> dict[str, list[Any]]:
    """The number of lines and a checksum of printed kernels, by kernel, dtype, shape and plan, without comments."""
    return {name: [text.count("\n"), checksum(text)] for name, text in _kernels()}


def _kernels() -> Iterator[tuple[str, str]]:
    names = plan_records.kernel_names()
    rows = [(name, "float32", (64, 781), -1) for name in names]
    inner = [(name, "float32", (3, 300, 33), 1) for name in ("softmax", "layer_norm_backward")]
    others = ("softmax", "bfloat16", (64, 781), -1), ("softmax", "float32", (8, 16_001), -1)
    columns = [(name, "float32", (8, 781), -1) for name in ("layer_norm", "rms_norm without residual")]
    for name, dtype, shape, dim in (*rows, *inner, *others, *columns):
        call = golden_plans.Question("", name, dtype, shape, dim).call
        masks = (call.scale_mask, _MASKED) if name == "softmax" and dim == -1 else (call.scale_mask,)
        plans = PLAN_OVERRIDES if name in _FULL else ("whole_row+reload",) if shape == (8, 781) else _FEW
        for plan, mask in product(plans, masks):
            planned = LaunchPlan(KernelConfig("whole_row", 1 if shape == (8, 781) else 4, 1024), 8, "")
            masked = replace(call, scale_mask=mask)
            override = PLAN_OVERRIDES[plan]
            launched = planned if override is None else override(planned, masked.problem)
            shown = f"{name} {dtype} {'x'.join(map(str, shape))} {plan}{' masked' * (mask is _MASKED)}"
            yield shown, plain(compiler.source(masked.specialize(launched.config)))
            if plan in _FEW and name in _FULL and mask is not _MASKED:
                biased = replace(launched.config, exp2_bias=_BIASED)
                yield f"{shown} biased", plain(compiler.source(masked.specialize(biased)))
    for name, persistent in product(_FULL, (False, True)):
        call = golden_plans.Question("", name, "float32", (8, 262_144)).call
        config = replace(_WIDE, persistent=persistent)
        yield f"{name} of many programs, {persistent=}", plain(compiler.source(call.specialize(config)))
    for name in _FULL:
        call = golden_plans.Question("", name, "float32", (64, 1024)).call
        same = batch_invariance.InvariantCall(**{entry.name: getattr(call, entry.name) for entry in fields(call)})
        yield f"{name} batch-invariant", str(same.specialize(KernelConfig("whole_row", 4, 1024)).divisible)
    for name, (axis, parts) in product(_FULL, ((1, False), (0, False), (1, True))):
        sizes = {"ROWS": ROWS, "COLS": COLS, "ACC_DTYPE": "fp32", "EXP2_BIAS": None, "REPORT": None}
        constants = {"AXIS": axis, "PARTS": parts, **sizes}
        trial = Specialization(
            golden_plans.kernel_of(name), "trial", (), tuple(constants.items()), (), 4, 1, None, False
        )
        yield f"{name} trial {axis} {parts}", plain(compiler.source(trial))


def plain(source: str) -> str:
    """Returns the lines of a source without comments, which begin after spaces, and without empty lines."""
    lines = (re.sub(r"(^|\s+)# .*$", "", line) for line in source.splitlines())
    return "".join(f"{line}\n" for line in lines if line.strip())


RECORDS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "declarations": declarations, "interface": interface, "kernels": kernels, "plans": plan_records.plans,
    "conformance": case_records.conformance, "bounds": case_records.bounds,
}  # fmt: skip
"""What is recorded, by the name of its file."""


def file_of(name: str) -> Path:
    return golden_plans.FOLDER / f"{name}.json"


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
        file_of(name).write_text(text_of(made()) + "\n")
        print(f"writes {file_of(name)}")
