"""Checks of an op's functions that describe a call: what they read, launch and return. Errors name the op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tridal.devices.entry_points import describe_error
from tridal.errors import PluginError, TridalError, nearest
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.op import NoKernel, Op
from tridal.ops.signature import Arguments

Tensor = torch.Tensor
_DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_READS = ("tolist", "numpy", "__array__", "__dlpack__")
"""The functions of torch that read values without its dispatcher."""


class NamedArguments(dict[str, Any]):
    """The arguments of a call by name. A name that the call does not have is an error that lists the known ones."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments.named)
        self._op = arguments.signature.name

    def __missing__(self, name: object) -> NoReturn:
        known = f"{nearest(str(name), self)}: a call has {', '.join(self)}"
        gradient = "; `gradient_numbers` names other numbers" * self._op.endswith("_backward")
        raise PluginError(f"op {self._op!r} has no argument {name!r}{known}{gradient}")


@contextmanager
def naming(
    op: Op, function: str, kinds: tuple[type[BaseException], ...] = (Exception, SystemExit)
) -> Iterator[None]:  # fmt: skip
    """Turns exceptions of a function of the declaration into PluginError, which names the op."""
    try:
        yield
    except (NoKernel, TridalError, torch.OutOfMemoryError):
        raise
    except kinds as error:
        raise PluginError(f"op {op.name!r}: {function} raised {describe_error(error)}") from error


class _Values(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _DEPENDS_ON_VALUES.isdisjoint(func.tags):
            _refuse_values(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in _READS:
            _refuse_values(name)
        return func(*args, **(kwargs or {}))


def _refuse_values(function: str) -> NoReturn:
    raise RuntimeError(
        f"the value of a tensor is read ({function}), but later calls with other values run the same steps: compute "
        "with call.torch, check values with call.run, or declare the op with prepares=False"
    )


@contextmanager
def without_values() -> Iterator[None]:
    """A context in which a value of a tensor cannot be read."""
    with _Reads(), _Values():  # type: ignore[no-untyped-call]
        yield


def check_launch(
    op: Op, kernel: RowKernel, inputs: Sequence[Any], dim: Any, dtypes: Sequence[torch.dtype], writes: Sequence[str],
    out: Sequence[Tensor], numbers: Mapping[str, Any],
) -> None:  # fmt: skip
    """Raises PluginError if the arguments of `Steps.kernel` do not fit the kernel."""
    fault = next(_launch_faults(kernel, inputs, dim, dtypes, writes, out, numbers), None)
    if fault is not None:
        raise PluginError(f"op {op.name!r}: call.kernel of {kernel.name!r}: {fault}")


def _launch_faults(
    kernel: RowKernel, inputs: Sequence[Any], dim: Any, dtypes: Sequence[torch.dtype], writes: Sequence[str],
    out: Sequence[Tensor], numbers: Mapping[str, Any],
) -> Iterator[str]:  # fmt: skip
    names, outputs = kernel.inputs, kernel.outputs
    if len(inputs) != len(names):
        yield f"expected {len(names)} input(s) ({', '.join(names)}), found {len(inputs)}"
        return
    for name, value in zip(names, inputs, strict=True):
        if not isinstance(value, Tensor) and (value is not None or name == names[0]):
            yield f"expected a tensor{' or None' * (name != names[0])} as {name!r}, found {type(value).__name__}"
            return
    rank = max(inputs[0].dim(), 1)
    if not isinstance(dim, int | torch.SymInt) or not -rank <= dim < rank:
        shape = tuple(inputs[0].shape)
        yield f"expected dim from {-rank} to {rank - 1} for {names[0]!r} of shape {shape}, found {dim!r}"
    constants = [name for name, _ in kernel.constants]
    for name in kernel.parameters:
        if name not in numbers:
            yield f"expected a number {name!r}, one of its parameters"
    for name in numbers:
        if name not in (*kernel.parameters, *constants):
            known = ", ".join((*kernel.parameters, *constants)) or "none"
            yield f"it has no parameter or constant {name!r}{nearest(name, constants)} (known: {known})"
    for name in writes:
        if name not in outputs:
            yield f"writes: it has no output {name!r} (known: {', '.join(outputs)})"
    written = [name for name in outputs if name in (writes or outputs) and name not in kernel.column_writes]
    if dtypes and len(dtypes) != len(written):
        yield f"dtypes: expected {len(written)} ({', '.join(written)}), found {len(dtypes)}"
    if len(out) > len([name for name in kernel.writes if name in written]):
        yield f"out: expected at most one tensor for each output with a number per element, found {len(out)}"


def check_results(op: Op, function: str, found: Any, arguments: Arguments) -> None:
    """Raises PluginError if the results of recorded steps are not like those that the arguments give.

    New tensors are meta tensors. Others are arguments, or views of them.
    """
    names, expected = [result.name for result in arguments.signature.results], arguments.new_results()
    if not isinstance(found, tuple | list) or len(found) != len(names):
        given = f"{len(found)} results" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
        raise PluginError(f"op {op.name!r}: {function} returned {given}: expected a tuple of {', '.join(names)}")
    for name, tensor, like in zip(names, found, expected, strict=True):
        if tensor is None or like is None:
            continue
        if not isinstance(tensor, Tensor):
            fault = f"a {type(tensor).__name__}: expected a tensor"
        elif tensor.shape != like.shape or tensor.dtype is not like.dtype:
            fault = f"{_description(tensor)}: expected {_description(like)}"
        elif not tensor.is_meta:
            fault = "a tensor with the memory of an argument: copy it with call.torch(torch.Tensor.clone, ...)"
        else:
            continue
        raise PluginError(f"op {op.name!r}: {function} returned as {name!r} {fault}")


def _description(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
