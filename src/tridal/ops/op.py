"""The declaration of an op: its arguments and results, its kernels, and its math in torch's ops."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch

from tridal.devices.entry_points import describe_error
from tridal.errors import PluginError
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.arguments import DIM, DTYPE, SCALE_MASK, Argument, Named, Result
from tridal.ops.op_faults import faults
from tridal.ops.signature import Arguments, Signature


class NoKernel(Exception):
    """No kernel supports a call, so the op's reference computes it. Call records contain the message as the reason."""


OUTPUT = (Result("output", "element", gradient="grad"),)


@dataclass(frozen=True, eq=False)
class Op:
    """An op that computes rows of tensors. Compared and hashed by identity.

    The registered op in `torch.ops.tridal`, its gradient, its DTensor and vmap rules, the conformance cases, the
    benchmarks, the choices of the commands and the plans of all backends are derived from it.

    Attributes:
        name: lower-case letters, digits and underscores; no keyword of Python.
        arguments: the arguments of the registered op, tensors first. The first tensor has a number per element. If
            there is neither an argument `dims` nor the attribute `dim`, `dim` and `dtype` are added after the tensors.
            `dims` is the number of last dims that form a row. Numbers have the names of the kernels' parameters.
        kernels: the kernel of the op, and that of its gradient, if there is one. Their tensors are those of the
            arguments, by role and in order. The outputs of the gradient's kernel are `gradients`. If the op has
            `steps`, these are all kernels that they launch.
        reference: `reference(*tensors, reduce, **numbers)`, which defines the op in torch's ops. Tensors have the dtype
            of sums and can be broadcast to each other; an absent one is None. Returns a result, or a tuple of all; a
            number per row keeps its dim. Autograd must be able to differentiate it. The conformance suite runs it in
            float64. It also computes what no kernel supports, higher-order and forward-mode derivatives, and rows that
            are sharded over ranks, for which `reduce` spans the ranks.
        gradient: the gradient in torch's ops: `gradient(*gradients of results, *saved tensors, reduce, **numbers)`.
            Returns the gradients in order. For a tensor with a number per column, it returns the term of each element,
            without the sum over rows. It receives `output_mask` if it has a parameter of this name.
        results: the results. By default, one tensor with a number per element.
        saves: names of the arguments and results that the gradient needs. A tuple is the name of the saved tensor,
            followed by the names of arguments and results, of which the first that a call has is saved.
        gradients: for each output of the gradient, the names of the arguments that have it. By default, one for each
            differentiable argument.
        gradient_results: the results of the gradient. By default, they have the roles of the tensors in `gradients`.
        gradient_numbers: numbers of the gradient. By default, the op's numbers of the type float.
        steps: steps(call, arguments by name), for a call of several launches. It launches kernels with `call.kernel`,
            and returns the results in order, see `tridal.pytorch.Steps`.
        gradient_steps: the same for the gradient. An op with `steps` and `gradient` has it.
        prepares: whether calls with the same key are computed alike, see `tridal.pytorch.path.keys`. `steps` are then
            recorded once for a key. If not, each call computes its steps, which may then use the values of tensors and
            torch's ops.
        any_rows: whether recorded steps are the same for any number of rows, and thus depend on no size of the dims
            before those of a row. If not, they are recorded for each shape.
        dim: the dim along which rows run, if no argument gives it. A tensor of one dim is one row.
        constants: constants(arguments by name), the compile-time constants that follow from a call. Called for each
            kernel that declares constants.
        unsupported: unsupported(arguments by name, dtypes of results), the reason why no kernel computes a call, or
            None.
        torch_function: torch's own function, if there is one: `f(input, dim, dtype=dtype)`. It computes calls that have
            no kernel, and benchmarks compare with it.
        aten: "module:mapping", the functions with which `tridal.override_torch` replaces ATen ops, by their names.
        autocast: whether autocast computes the op in float32, as torch does for softmax. If not, the op computes in the
            input's dtype under autocast.
        bounds: the error bounds of an op of one tensor in the conformance suite: an object with the methods of
            `tridal.library.softmax.bounds.SoftmaxBounds`. By default, the suite derives them by simulating roundings of
            the reference.
        cases: "module:object", a `tridal.testing.OpCases`: what the conformance cases need beyond the roles of
            tensors.
        example: an input, a gradient, and the result and the input's gradient, calculated by hand to four decimals.
            Rows are along dim -1. `tridal check` compares with it.
        benchmark: "module:object" of a `tridal.benchmarks.op_benchmark.OpBenchmark`, with what `tridal bench` cannot
            derive. It is imported when the op is measured.
    """

    name: str
    arguments: tuple[Argument, ...]
    kernels: tuple[RowKernel, ...]
    reference: Callable[..., Any]
    gradient: Callable[..., Any] | None = None
    results: tuple[Result, ...] = OUTPUT
    saves: tuple[str | tuple[str, ...], ...] = ("output",)
    gradients: tuple[tuple[str, ...], ...] = ()
    gradient_results: tuple[Result, ...] = ()
    gradient_numbers: tuple[Argument, ...] | None = None
    steps: Callable[[Any, Named], Sequence[torch.Tensor | None]] | None = None
    gradient_steps: Callable[[Any, Named], Sequence[torch.Tensor | None]] | None = None
    prepares: bool = True
    any_rows: bool = False
    dim: int | None = None
    constants: Callable[[Named], Mapping[str, Any]] | None = None
    unsupported: Callable[[Named, Sequence[torch.dtype]], str | None] | None = None
    torch_function: Callable[..., torch.Tensor] | None = None
    aten: str | None = None
    autocast: bool = False
    bounds: Any = None
    cases: str | None = None
    example: tuple[tuple[tuple[float, ...], ...], ...] | None = None
    benchmark: str | None = None

    def __repr__(self) -> str:
        return f"Op({self.name!r})"

    @property
    def forward(self) -> RowKernel:
        """The kernel with the op's name."""
        return self.kernels[0]

    @property
    def backward(self) -> RowKernel:
        """The kernel of the gradient."""
        return self.kernels[1]

    @functools.cached_property
    def scale_mask(self) -> bool:
        """Whether the op takes `scale`, `mask`, `causal` and `masked_rows`."""
        return self.steps is None and self.forward.scale_mask

    @property
    def one_tensor(self) -> bool:
        """Whether the op reads one tensor and returns one, both with a number per element."""
        tensors = [argument for argument in self.arguments if argument.type == "Tensor"]
        return self.steps is None and len(tensors) == len(self.results) == 1 and self.results[0].role == "element"

    @functools.cached_property
    def parameters(self) -> dict[str, float]:
        """The numbers of the type float with their defaults, except `scale`."""
        return {a.name: a.default for a in self.arguments if a.type == "float" and not a.optional}

    @functools.cached_property
    def signature(self) -> Signature:
        """The signature of the op."""
        tensors = tuple(argument for argument in self.arguments if argument.type == "Tensor")
        numbers = self.arguments[len(tensors) :]
        added = (DIM, DTYPE) if self.dim is None and all(n.name != "dims" for n in numbers) else ()
        arguments = (*tensors, *added, *numbers, *(SCALE_MASK if self.scale_mask else ()))
        kernel = self.forward if self.steps is None else None
        any_rows = self.steps is None or self.any_rows
        return Signature(self.name, arguments, self.results, kernel, 0, self.dim, self.steps, any_rows, bool(added))

    @functools.cached_property
    def gradient_signature(self) -> Signature:
        """The signature of the gradient: gradients of results, saved tensors, numbers and `output_mask`."""
        given = [result for result in self.results if result.gradient is not None]
        kernel = self.backward if self.steps is None and len(self.kernels) > 1 else None
        added = None if kernel is None else kernel.added
        optional = self.steps is not None or (len(given) == 2 and given[1].gradient == added)
        grads = [Argument(r.gradient or "", role=r.role, optional=optional) for r in given]
        saved = [self._saved_argument(name, sources[-1]) for name, sources in self.saved.items()]
        rows = [a for a in self.signature.arguments if a.name in ("dim", "dims", "dtype")] if self.dim is None else []
        numbers = self.gradient_numbers
        if numbers is None:
            numbers = tuple(a for a in self.arguments if a.type == "float") + SCALE_MASK[1:2] * self.scale_mask
        mask = [Argument("output_mask", "bool[]")] * (len(self.gradient_groups) > 1)
        arguments = (*grads, *saved, *rows, *numbers, *mask)
        required = [i for i, a in enumerate(arguments) if a.role is not None and not a.optional]
        elements = (i for i in required if arguments[i].role == "element" and not arguments[i].per_block)
        main = max(elements, default=min(required, default=0))
        roles = [(names[0], self._argument(names[0]).role) for names in self.gradient_groups]
        derived = [
            Result(name, "whole", new=functools.partial(_like, name))
            if role == "whole"
            else Result(name, "element" if role == "element" else "column")
            for name, role in roles
        ]
        if not any(argument.name == "dtype" for argument in arguments):
            of_main = functools.partial(_dtype_of, arguments[main].name)
            derived = [replace(r, dtype=of_main) if r.role == "element" else r for r in derived]
        results = self.gradient_results or tuple(derived)
        steps, any_rows = self.gradient_steps, self.steps is None or self.any_rows
        return Signature(f"{self.name}_backward", arguments, results, kernel, main, self.dim, steps, any_rows)

    @functools.cached_property
    def saved(self) -> dict[str, list[str]]:
        """For each saved tensor, the names of the arguments and results of which the first one is saved."""
        saves = () if self.gradient is None else self.saves
        pairs = [(saved, saved) if isinstance(saved, str) else saved for saved in saves]
        return {name: sources for name, *sources in pairs}

    @functools.cached_property
    def returned(self) -> int:
        """How many results the op's function returns. These are the first ones."""
        return sum(result.returned for result in self.results)

    @functools.cached_property
    def gradient_groups(self) -> tuple[tuple[str, ...], ...]:
        """The names of the arguments that have each gradient."""
        return self.gradients or tuple((a.name,) for a in self.signature.arguments if a.differentiable)

    @functools.cached_property
    def gradient_index(self) -> tuple[int, ...]:
        """For each argument of the op: the index of its gradient in the results of the gradient, or -1."""
        found = {name: index for index, names in enumerate(self.gradient_groups) for name in names}
        return tuple(found.get(argument.name, -1) for argument in self.signature.arguments)

    @functools.cached_property
    def differentiable_results(self) -> int:
        """How many results have gradients. These are the first ones."""
        return sum(result.gradient is not None for result in self.results)

    @functools.cached_property
    def gradient_takes_mask(self) -> bool:
        """Whether `gradient` has the parameter `output_mask`."""
        return self.gradient is not None and "output_mask" in inspect.signature(self.gradient).parameters

    @functools.cached_property
    def fills_gradients(self) -> bool:
        """Whether zeros replace a gradient that autograd does not have, because the gradient's kernel needs all.

        If not, all results after the first depend only on the arguments that have the first gradient, unless tensors
        have the role "whole".
        """
        return self.differentiable_results > 1 and not self.gradient_signature.arguments[0].optional

    def save(
        self, arguments: Arguments, results: Sequence[torch.Tensor | None]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the tensors and the numbers that the gradient gets between its gradients and `output_mask`.

        Inputs with a number per element are saved in the dtype `dtype`, to which the op casts them. Tensors of
        inference mode are copied, because autograd does not save them.
        """
        named, known = arguments.named, dict(arguments.named)
        for index, (result, tensor) in enumerate(zip(self.results, results, strict=False)):
            known[result.name] = None if arguments.lacks(index) else tensor
        tensors = []
        for sources in self.saved.values():
            source = next((name for name in sources if known[name] is not None), sources[-1])
            tensor = known[source]
            cast = source in named and self.signature.casts and tensor is not None and tensor.is_floating_point()
            tensor = tensor.to(named["dtype"]) if cast and self._argument(source).role == "element" else tensor
            tensors.append(tensor.clone() if tensor is not None and tensor.is_inference() else tensor)
        if self.signature.casts:  # the gradient has the dtype of these tensors before the cast
            pairs = zip(self.signature.arguments, arguments.values, strict=True)
            given = [t.dtype for a, t in pairs if a.role == "element" and a.differentiable and t is not None]
            known["dtype"] = functools.reduce(torch.promote_types, given or [arguments.main.dtype])
        numbers = [a for a in self.gradient_signature.arguments if a.type != "Tensor" and a.name != "output_mask"]
        return tuple(tensors), tuple(known.get(a.name, a.default) for a in numbers)

    def load(self, field: str) -> Any:
        """Loads the object that a field names, for example `benchmark`.

        Raises:
            PluginError: it cannot be loaded.
        """
        name = getattr(self, field)
        try:
            return resolve_name(name or "")
        except (Exception, SystemExit) as error:
            reason = describe_error(error)
            raise PluginError(f"op {self.name!r}: {field} {name!r} cannot be loaded: {reason}") from error

    def fault(self) -> str | None:
        """Describes the first fault in the declaration, or returns None."""
        return next(faults(self), None)

    def _argument(self, name: str) -> Argument:
        return next(argument for argument in self.signature.arguments if argument.name == name)

    def _saved_argument(self, name: str, source: str) -> Argument:
        known: dict[str, Argument | Result] = {result.name: result for result in self.results}
        known |= {argument.name: argument for argument in self.arguments}
        found = known[source]
        if isinstance(found, Argument):
            return Argument(name, role=found.role, optional=found.optional, per_block=found.per_block)
        return Argument(name, role=found.role, optional=callable(found.needs))


def RowOp(*arguments: Any, **fields: Any) -> NoReturn:
    """Raises PluginError: `Op` has replaced it.

    Example:
        >>> tridal.ops.RowOp("l2_norm")
        Traceback (most recent call last):
        tridal.errors.PluginError: RowOp is now Op, which also declares ops of several tensors: see docs/add-an-op.md
    """
    raise PluginError("RowOp is now Op, which also declares ops of several tensors: see docs/add-an-op.md")


def _dtype_of(name: str, named: Named) -> torch.dtype:
    return named[name].dtype  # type: ignore[no-any-return]


def _like(name: str, named: Named) -> torch.Tensor:
    return named[name].new_empty(named[name].shape)  # type: ignore[no-any-return]
