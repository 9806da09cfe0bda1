"""The steps of a call that needs several launches, such as the losses of rows and then their mean.

`Op.steps` describes a call once, with tensors like those of the call. A `Call` then runs the same steps for all tensors
with the same key, see `tridal.pytorch.path.recorder`. A step is a kernel, a view, or a function of torch's ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.kernels.row_kernel import RowKernel
from tridal.ops.op import NoKernel, Op
from tridal.ops.signature import Signature
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.kernel_calls import launch_kernel, variant
from tridal.pytorch.path.run_source import KernelUse
from tridal.pytorch.path.step_checks import check_launch

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
            inputs: the tensors of `reads`, `added`, `row_reads`, `row_index` and `column_reads`, in this order. The
                kernel is compiled without those that are None.
            dim: the dim of the first input along which rows run.
            dtypes: the dtypes of the outputs with a number per element, then of those with a number per row. By
                default, the dtype of the first input after the cast, and that of sums.
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
        outputs = tuple(writes) or (*kernel.writes, *kernel.row_writes, *kernel.column_writes)
        kernel = variant(kernel, tuple(absent), outputs, constants)
        parameters = tuple(numbers[name] for name in kernel.parameters)
        use = KernelUse(kernel, dim % given[0].dim(), tuple(dtypes), parameters, cast)
        if not dtypes:
            default = *[cast or given[0].dtype] * len(kernel.writes), *[use.sum_dtype(given)] * len(kernel.row_writes)
            use = use._replace(out_dtypes=default)
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


def fake_results(signature: Signature, *arguments: Any) -> tuple[Tensor | None, ...]:
    """Returns empty tensors with the shapes and dtypes of the results."""
    named, main = signature.named(arguments), arguments[signature.main]
    shapes = signature.rows(arguments).shapes(main.shape)
    given = zip(signature.results, signature.result_roles(named), signature.dtypes(named), strict=True)
    return tuple(
        None if role is None else main.new_empty(shapes[role], dtype=dtype) if result.new is None else result.new(named)
        for result, role, dtype in given
    )
