"""The source of a function that allocates the outputs of a kernel and launches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tridal.kernels.op_functions import constants_of
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.call_records import RECORDERS, CallRecord, dtype_name, record
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.generated import generated
from tridal.pytorch.torch import private
from tridal.runtime.launch import Launch

Tensor = torch.Tensor


class KernelUse(NamedTuple):
    """How a call uses a kernel."""

    kernel: RowKernel
    dim: int
    """The dim along which rows run, 0 <= dim < rank of the first input."""
    out_dtypes: tuple[torch.dtype, ...]
    """The dtypes of `writes`, then of `row_writes` and of `top_writes`."""
    parameters: tuple[float | None, ...] = ()
    cast: torch.dtype | None = None
    """The dtype to which inputs with a number per element are cast. The kernel does it on load if that is exact."""
    takes: tuple[int | None, ...] = ()
    """For each argument of `run`, the input that it is, or None if the kernel does not read it. Empty: the inputs."""
    returns: tuple[int | None, ...] = ()
    """For each result of `run`, the output that it is, or None. Empty: the outputs."""
    recorded: bool = True
    """Whether call records contain it. A kernel that belongs to the one before it is not recorded."""
    block_dims: int = 0
    """The number of leading dims whose indices are those of a block of rows, see `RowKernel.per_block`."""

    sum_dtypes: tuple[torch.dtype | None, ...] = ()
    """The dtype to which each sum of `column_writes` is rounded if a kernel adds partial sums of float32. Others, and
    by default all, have the dtype of the partial sums."""

    @property
    def elements(self) -> int:
        """How many inputs have a number per element. These are the first ones."""
        return len(self.kernel.reads) + (self.kernel.added is not None)

    def sum_dtype(self, inputs: Sequence[Tensor]) -> torch.dtype:
        """Returns the dtype of sums: that of the outputs, and of the inputs after the cast."""
        cast = 0 if self.cast is None else self.elements
        return accumulator(*self.out_dtypes, *(self.cast if i < cast else t for i, t in enumerate(inputs)))


class AddressLaunch(NamedTuple):
    """A launch that needs only addresses, those of the outputs first: launch(stream(device), rows, *addresses)."""

    launch: Callable[..., None]
    stream: Callable[[int], int]
    device: int
    """The index of the device."""
    rows: int
    record: Callable[[], None] | None
    """Adds the call to call records, if it is one."""


def allocator(context: DeviceContext) -> Callable[..., Tensor] | None:
    """Returns make(shape, strides, dtype), which is faster than torch's functions; None if there are several devices.

    It allocates on the current device.
    """
    single = context.backend is not None and context.backend.device_count() == 1
    return private.allocator(context.device) if single else None


def make_run(
    context: DeviceContext, use: KernelUse, inputs: Sequence[Tensor], written: Sequence[torch.dtype],
    bound: Launch, copies: Sequence[torch.dtype | None], given: int, any_rows: bool,
    add: Sequence[Callable[[Tensor], Tensor]], bare: bool = False,
) -> tuple[Callable[..., tuple[Any, ...]], AddressLaunch | None]:  # fmt: skip
    """Returns run(*arguments), whose source is generated.

    The second result is the same as a launch by addresses, if `run` only launches.

    Args:
        written: the dtypes of the kernel's outputs. The first `given` ones are arguments of `run`, before the inputs.
        copies: for each input, the dtype of the contiguous copy that the kernel reads, or None if it reads the input.
        any_rows: whether the first input may have any number of rows, or of columns if it has one dim.
        add: functions that add the partial sums of columns, in the order of `column_writes`.
        bare: whether `run` returns its first result instead of a tuple.
    """
    kernel, first = use.kernel, inputs[0]
    assert context.backend is not None
    make = allocator(context)
    scope: dict[str, Any] = {
        "make": make, "launch": bound.launch, "stream": context.backend.stream, "index": context.index,
        "contiguous_copy": contiguous_copy, "copy_to": copy_to, "RECORDERS": RECORDERS, "record": record,
        "uint8": torch.uint8, "groups": bound.groups,
    }  # fmt: skip
    sizes = _sizes_of(first.shape, use.dim, any_rows, bound, kernel.top)

    def allocated(shape: str, strides: str, dtype: torch.dtype) -> str:
        """Returns an expression for a new contiguous tensor."""
        name = dtype_name(dtype)
        scope[name] = dtype
        return f"make({shape}, {strides}, {name})" if make is not None else f"in0.new_empty({shape}, dtype={name})"

    lines = [sizes.line] if sizes.line else []
    kinds = zip(kernel.tensors, (sizes.element, sizes.row, sizes.top, sizes.parts), strict=False)
    for number, shape in enumerate(shape for names, shape in kinds for _ in names):
        if number >= given:
            lines.append(f"out{number} = {allocated(*shape, written[number])}")
    # A kernel may read a copy in the memory of its output, because each element is read before it is written.
    in_place = not given and len(kernel.writes) == 1 and written[0] is copies[0]
    in_place = in_place and not constants_of(kernel)["PICKS"]  # another program may write an element that is picked
    for number, dtype in enumerate(copies):
        overwritten = in_place and number == 0
        if dtype is not None and (overwritten or inputs[number].dtype is not dtype):
            memory = "out0" if overwritten else allocated(*sizes.element, dtype)
            lines.append(f"in{number} = copy_to({memory}, in{number})")
        elif dtype is not None:
            lines.append(f"in{number} = contiguous_copy(in{number})")
    passed = [f"out{number}" for number in range(len(written))] + [f"in{number}" for number in range(len(inputs))]
    if len(inputs) > len(copies) and inputs[-1].dtype is torch.bool:
        passed[-1] += ".view(uint8)"
    lines.append(f"launch(stream(index), {sizes.rows}, {', '.join(passed)})")
    recorded = None
    if use.recorded:
        device, backend, name = str(context.device), context.backend.name, dtype_name(first.dtype)

        def recorded(shape: Sequence[int] = tuple(first.shape)) -> None:
            record(CallRecord(kernel.name, tuple(shape), name, device, backend, bound.plan.schedule, None))

        scope["recorded"] = recorded
        lines.append(f"if RECORDERS: recorded({sizes.element[0]})")
    for number, out_dtype in enumerate(use.out_dtypes):
        if out_dtype is not written[number]:
            scope[f"cast{number}"] = out_dtype
            lines.append(f"out{number} = out{number}.to(cast{number})")
    if kernel.column_writes and not sizes.one_group:
        for number, add_parts in enumerate(add, len(use.out_dtypes)):
            scope[f"add{number}"] = add_parts
            lines.append(f"out{number} = add{number}(out{number})")
    takes = use.takes or tuple(range(len(inputs)))
    arguments = [f"unused{position}" if taken is None else f"in{taken}" for position, taken in enumerate(takes)]
    arguments = [*(f"out{number}" for number in range(given)), *arguments]
    returns = use.returns or tuple(range(len(written)))
    results = "".join("None, " if number is None else f"out{number}, " for number in returns)
    lines.append(f"return {results.partition(',')[0] if bare else f'({results})'}")
    run = generated("run", ", ".join(arguments), lines, scope)
    by_address = None
    if bound.by_address is not None and given == len(written) and not (any_rows or any(copies) or use.takes):
        by_address = AddressLaunch(bound.by_address, context.backend.stream, context.index, int(sizes.rows), recorded)
    return run, by_address


class _Sizes(NamedTuple):
    """Expressions for the sizes of a call, for the source of a function with the first input `in0`."""

    line: str
    """A statement that defines the names in the expressions, or ""."""
    rows: str
    """The number that the launch gets: of rows, or of columns of one row if it serves several, see `column_range`."""
    element: tuple[str, str]
    """Shape and strides of a new tensor with a number per element."""
    row: tuple[str, str]
    top: tuple[str, str]
    """The same of a tensor of `top_writes`."""
    parts: tuple[str, str]
    """The same of a tensor of partial sums, which are the sums if there is one group of programs."""
    one_group: bool
    """Whether all launches have one group of programs."""


def _sizes_of(shape: torch.Size, dim: int, any_rows: bool, bound: Launch, top: int) -> _Sizes:
    """Returns the sizes. They are numbers, or follow from `in0` if the function serves several numbers of rows."""
    cols, rank, groups = str(shape[dim]), len(shape), bound.groups
    one_group = groups(bound.row_range[1]) == 1

    def parts(rows: str, cols: str = cols) -> tuple[str, str]:
        return _new([cols] if one_group else [rows, cols])

    if any_rows and rank == 1:
        parts_of_row, chosen = parts(str(groups(1)), "cols"), _new([str(top)])
        return _Sizes("(cols,) = in0.shape", "cols", _new(["cols"]), _new([]), chosen, parts_of_row, one_group)
    if any_rows:
        names = [f"s{axis}" for axis in range(rank - 1)]
        rows = " * ".join(names)
        # This is faster than the shape.
        line = f"s0 = in0.numel() // {cols}" if rank == 2 else f"{', '.join(names)}, _ = in0.shape"
        launched = rows if bound.column_range is None else cols
        chosen = _new([*names, str(top)])
        return _Sizes(line, launched, _new([*names, cols]), _new(names), chosen, parts(f"groups({rows})"), one_group)
    number, sizes = shape.numel() // shape[dim], [*map(str, shape)]
    rows = str(number) if bound.column_range is None else cols
    of_row = [*sizes[:dim], *sizes[dim + 1 :]]
    chosen = _new([*of_row, str(top)])
    return _Sizes("", rows, _new(sizes), _new(of_row), chosen, parts(str(groups(number))), one_group)


def _new(sizes: Sequence[str]) -> tuple[str, str]:
    """Returns expressions for a shape and for the strides of a contiguous tensor of this shape."""
    strides = [" * ".join(sizes[axis + 1 :]) or "1" for axis in range(len(sizes))]
    return f"({''.join(f'{size}, ' for size in sizes)})", f"({''.join(f'{stride}, ' for stride in strides)})"


def copy_to(out: Tensor, tensor: Tensor) -> Tensor:
    """Copies a tensor to `out`. torch's copy_ ignores the negative bit of a tensor when it casts to a 16-bit dtype."""
    return out.copy_(tensor.resolve_neg() if tensor.is_neg() and tensor.dtype is not out.dtype else tensor)


def contiguous_copy(tensor: Tensor) -> Tensor:
    """Returns a copy in new memory, which is aligned. torch's `contiguous` returns a contiguous tensor itself."""
    return tensor.clone(memory_format=torch.contiguous_format)
