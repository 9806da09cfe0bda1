"""The steps of a call that needs several launches, such as the losses of rows and then their mean.

`Op.steps` describes a call once, with tensors like those of the call. A `Call` then runs the same steps for all tensors
with the same key: a `Recorder` writes them as the source of a function. A step is a kernel, a view, or a function of
torch's ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.errors import PluginError
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.op import NoKernel, Op
from tridal.ops.signature import Arguments
from tridal.pytorch.call_records import RECORDERS
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.call import Call
from tridal.pytorch.path.checks import check_shapes
from tridal.pytorch.path.generated import generated
from tridal.pytorch.path.kernel_calls import kernel_call, launch_kernel, variant, with_numbers
from tridal.pytorch.path.run_source import AddressLaunch, KernelUse, allocator
from tridal.pytorch.path.step_checks import NamedArguments, check_launch, check_results, naming, without_values

Tensor = torch.Tensor


class Steps:
    """Computes the steps of a call one after the other. A `Recorder` records them for later calls.

    Attributes:
        op: the op.
        wanted: for each result, whether the call needs it.
        overwrites: whether the steps may write the results into the memory of saved tensors.
    """

    def __init__(self, op: Op, context: DeviceContext, wanted: Sequence[bool], overwrites: bool = False) -> None:
        self.op, self.wanted, self.overwrites, self._context = op, wanted, overwrites, context

    @property
    def batch_invariant(self) -> bool:
        """Whether results must not depend on other rows, see the setting `batch_invariant`."""
        return self._context.settings.batch_invariant

    @property
    def torch_computes(self) -> bool:
        """Whether torch computes the call, because no backend serves its tensors."""
        return self._context.torch_computes

    @property
    def interpreted(self) -> bool:
        """Whether the interpreter computes the kernels, so that a check of values costs nothing in comparison."""
        return self._context.backend is not None and self._context.backend.interpreted

    def kernel(
        self, kernel: RowKernel, *inputs: Tensor | None, dim: int = -1, dtypes: Sequence[torch.dtype] = (),
        writes: Sequence[str] = (), out: Tensor | Sequence[Tensor] | None = None,
        cast: torch.dtype | None = None, **numbers: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Launches a kernel. Returns its outputs.

        Args:
            inputs: the tensors of `reads`, `added`, `row_reads`, `row_index`, `top_reads`, `top_index` and
                `column_reads`, in this order. The kernel is compiled without those that are None. One element for
                `row_reads` is a number for all rows.
            dim: the dim of the first input along which rows run.
            dtypes: the dtypes of the outputs with a number per element, then of those with a number per row, then of
                `top_writes`. By default, the dtype of the first input after the cast, and that of sums.
            writes: the names of the outputs that are computed, by default all.
            out: receives the first outputs with a number per element: one tensor, or several. They may be inputs, and
                views, for example of one tensor that `torch` made.
            cast: the dtype to which inputs with a number per element are cast. The kernel does it on load if that is
                exact.
            numbers: the kernel's parameters and constants. The kernel is compiled without parameters that are None.

        Raises:
            NoKernel: no kernel computes the tensors.
            PluginError: the kernel has no such input, dim, output, parameter or constant.
            ShapeError: an input has another shape than its kind requires.
        """
        out = (out,) if isinstance(out, Tensor) else tuple(out or ())
        check_launch(self.op, kernel, inputs, dim, dtypes, writes, out, numbers)
        given = [tensor for tensor in inputs if tensor is not None]
        absent = [name for name, tensor in zip(kernel.inputs, inputs, strict=True) if tensor is None]
        absent += [name for name in kernel.parameters if numbers[name] is None]
        constants = tuple((name, value) for name, value in numbers.items() if name not in kernel.parameters)
        outputs = tuple(writes) or kernel.outputs
        kernel = with_numbers(variant(kernel, tuple(absent), outputs, constants), given, dim)
        parameters = tuple(numbers[name] for name in kernel.parameters)
        use = KernelUse(kernel, dim % given[0].dim(), tuple(dtypes), parameters, cast)
        if not dtypes:
            sums = [use.sum_dtype(given)] * len((*kernel.row_writes, *kernel.top_writes))
            use = use._replace(out_dtypes=(*[cast or given[0].dtype] * len(kernel.writes), *sums))
        if self.torch_computes:
            raise NoKernel
        return self._launch(use, given, out)

    def _launch(self, use: KernelUse, given: list[Tensor], out: Sequence[Tensor]) -> tuple[Any, ...]:
        return launch_kernel(self._context, use, len(out), *out, *given)

    def view(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns function(*arguments), a view of one of the tensors, or a tuple of views.

        Later calls pass the address of a view to kernels, and make the view only if something else needs it.
        """
        return function(*arguments)

    def empty_like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns a new tensor with the shape and the strides that `torch.empty_like` gives."""
        return torch.empty_like(tensor, dtype=dtype)

    def torch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns function(*arguments), which computes new tensors with torch's ops. It must not read their values."""
        return function(*arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls function(*arguments) for its effect, for example a check of values."""
        function(*arguments)


class Recorder(Steps):
    """Records the steps of a call, and computes nothing. A meta tensor represents a new tensor."""

    def __init__(self, arguments: Arguments, most_rows: int | None, *given: Any) -> None:
        super().__init__(*given)
        self._lines: list[str] = []
        self._scope: dict[str, Any] = {"RECORDERS": RECORDERS}
        self._tensors: list[Tensor] = []  # they keep their ids
        self._names: dict[int, str] = {}
        self._views: dict[int, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {}
        """(function, arguments, results) of the views, by the ids of the results. A view is a step if something else
        than a launch by addresses needs it."""
        self._places: dict[int, tuple[Tensor, Any]] = {}
        """The tensor of which each view is one, and the distance of their addresses in bytes."""
        self._addresses: dict[str, str] = {}
        """The names of addresses, by those of their tensors."""
        self._most_rows = most_rows
        self._leading = arguments.main.shape[: arguments.rows.first]
        examples = list(arguments.values)
        self._parameters = []
        for index in arguments.signature.tensors:
            self._parameters.append(f"t{index}")
            if examples[index] is not None:
                if id(examples[index]) in self._names:  # another call may have two tensors here
                    examples[index] = examples[index].view_as(examples[index])
                self._name(examples[index], f"t{index}")
        self.arguments = Arguments(arguments.signature, examples)
        """The arguments of the call. Each tensor occurs once."""

    def _name(self, tensor: Tensor, name: str) -> str:
        self._tensors.append(tensor)
        return self._names.setdefault(id(tensor), name)

    def _text(self, value: Any) -> str:
        """Returns the expression of a tensor of the call, or of a constant."""
        if (view := self._views.get(id(value))) is not None and id(value) not in self._names:
            self._step(*view)
        if value is None or id(value) in self._names:
            return self._names.get(id(value), "None")
        if isinstance(value, Tensor):
            raise PluginError(
                f"op {self.op.name!r}: a step uses a tensor of shape {tuple(value.shape)} that no step returned: "
                "compute it with call.torch, or call.view for a view"
            )
        name = f"c{len(self._scope)}"
        self._scope[name] = value
        return name

    def _step(self, function: Callable[..., Any], arguments: Sequence[Any], results: Any) -> Any:
        """Adds a step whose results are like the tensors `results`. Returns them."""
        text = f"{self._text(function)}({', '.join(map(self._text, arguments))})"  # this may add steps before
        several = isinstance(results, tuple)
        names = [f"v{len(self._lines)}_{index}" for index in range(len(results) if several else results is not None)]
        targets = f"{', '.join(names)}{',' * several} = " if names else ""
        self._lines.append(f"{targets}{text}")
        for tensor, name in zip(results if several else [results], names, strict=False):
            if tensor is not None:
                self._name(tensor, name)
        return results

    def _launch(self, use: KernelUse, given: list[Tensor], out: Sequence[Tensor]) -> tuple[Any, ...]:
        check_shapes(use.kernel, use.dim, given, out)
        kernel, shape, dim = use.kernel, given[0].shape, use.dim
        of_all_rows = shape == (self._leading.numel(),)
        of_rows = of_all_rows or (shape[:-1] == self._leading and dim == len(shape) - 1)
        found = kernel_call(self._context, use, given, out, most_rows=self._most_rows if of_rows else None)
        if found is None:
            raise NoKernel("no kernel supports the dtypes or the strides")
        if found.by_address is not None and len(out) == len(use.out_dtypes):
            return self._launch_by_address(found.by_address, [*out, *given], tuple(out))
        # A kernel that does not compute all numbers of rows with the same key is looked up by its sizes.
        exact = self._most_rows is not None and not found.any_rows
        run = functools.partial(launch_kernel, self._context, use, len(out)) if exact else found.run
        of_row = *shape[:dim], *shape[dim + 1 :]
        shapes = [shape] * len(kernel.writes) + [of_row] * len(kernel.row_writes)
        shapes += [(*of_row, kernel.top)] * len(kernel.top_writes)
        shapes += [shape[dim : dim + 1]] * len(kernel.column_writes)
        dtypes = (*use.out_dtypes, *[use.sum_dtype(given)] * len(kernel.column_writes))
        new = [torch.empty(s, dtype=dtype, device="meta") for s, dtype in zip(shapes, dtypes, strict=True)]
        new[: len(out)] = out
        results: tuple[Any, ...] = self._step(run, [*out, *given], tuple(new))
        return results

    def view(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Records a view. It is computed now, because it has the alignment of its tensor."""
        found = function(*arguments)
        for tensor in found if isinstance(found, tuple) else (found,):
            if id(tensor) not in self._names:
                self._tensors.append(tensor)
                self._views[id(tensor)] = function, arguments, found
                self._locate(tensor, arguments)
        return found

    def _locate(self, view: Tensor, arguments: Sequence[Any]) -> None:
        """Finds the place of a view of one of the arguments, if it is among them."""
        storage = view.untyped_storage()._cdata
        for tensor in arguments:
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata == storage:
                root, start = self._places.get(id(tensor), (tensor, 0))
                distance = view.storage_offset() * view.itemsize - tensor.storage_offset() * tensor.itemsize
                self._places[id(view)] = root, start + distance
                return

    def _address(self, tensor: Tensor) -> str:
        """Returns the expression of the address of a tensor. A tensor of the call keeps the memory of its views."""
        root, distance = self._places.get(id(tensor), (tensor, 0))
        name = self._text(root)
        if name not in self._addresses:
            self._addresses[name] = f"{name}_address"
            self._lines.append(f"{name}_address = {name}.data_ptr()")
        return f"{self._addresses[name]} + {distance}" if distance else self._addresses[name]

    def _launch_by_address(
        self, launch: AddressLaunch, tensors: Sequence[Tensor], results: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Adds a launch that writes the results, which are given."""
        addresses = ", ".join(map(self._address, tensors))
        stream = f"{self._text(launch.stream)}({launch.device})"
        self._lines.append(f"{self._text(launch.launch)}({stream}, {launch.rows}, {addresses})")
        if launch.record is not None:
            self._lines.append(f"if RECORDERS: {self._text(launch.record)}()")
        return results

    def empty_like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Records a new tensor. It has constant sizes if those of the call are constant, which is faster."""
        new = torch.empty_like(_meta(tensor), dtype=dtype)
        make = None if self._most_rows is not None else allocator(self._context)
        if make is None:
            return self._step(functools.partial(torch.empty_like, dtype=dtype), (tensor,), new)  # type: ignore[no-any-return]
        sizes = tuple(new.shape), new.stride(), new.dtype
        return self._step(make, sizes, new)  # type: ignore[no-any-return]

    def torch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Records a function of torch's ops."""
        return self._step(function, arguments, function(*map(_meta, arguments)))

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Records a function without a result."""
        self._step(function, arguments, None)

    def call(self, results: Sequence[Tensor | None], bare: bool) -> Call:
        """Makes the call that returns these results of the steps, or only the first one if it is `bare`."""
        returned = [self._text(result) for result in results]
        text = returned[0] if bare else f"({''.join(f'{name}, ' for name in returned)})"
        run = generated("run", ", ".join(self._parameters), [*self._lines, f"return {text}"], self._scope)
        return Call(run, any_rows=True)


def _meta(value: Any) -> Any:
    """Replaces a tensor by a meta tensor with the same description, and keeps other values."""
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def recorded_steps(
    op: Op, arguments: Arguments, context: DeviceContext, wanted: Sequence[bool], most_rows: int | None,
    bare: bool = False,
) -> Call:  # fmt: skip
    """Returns the call that runs the steps.

    Raises:
        NoKernel: no kernel computes them.
        PluginError: the steps raise another exception, or return wrong results.
    """
    recorder, signature = Recorder(arguments, most_rows, op, context, wanted), arguments.signature
    assert signature.steps is not None
    function = "steps" if signature is op.signature else "gradient_steps"
    with naming(op, function), without_values():
        results = signature.steps(recorder, NamedArguments(recorder.arguments))
    check_results(op, function, results, Arguments(signature, [*map(_meta, arguments.values)]))
    return recorder.call(results, bare)
