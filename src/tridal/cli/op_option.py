"""What the commands' options accept: help texts that list the values, and errors for wrong ones."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand, TyperOption

from tridal.cli import broken
from tridal.cli.output import reserved
from tridal.devices import registry, setting_table, settings
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.types import DTYPE_ALIASES, ITEMSIZE
from tridal.errors import DTypeError, PlanError, UnknownDeviceError

OPS, MEASURED_OPS, KERNELS, DEVICES = "<ops>", "<measured ops>", "<ops and gradients>", "<devices>"
ARCHITECTURES, DTYPES, PROVIDERS, CLASSES = "<architectures>", "<dtypes>", "<providers>", "<classes of shapes>"
"""Placeholders in help texts. The help shows the accepted values instead."""
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help=f"The device: {DEVICES}. Default: the device that the settings select.")
]
"""Options of several commands."""
_WITH_TORCH = {
    OPS: "tridal.ops.table:ops",
    MEASURED_OPS: "tridal.benchmarks.op_benchmark:measured_ops",
    KERNELS: "tridal.ops.table:kernels",
    ARCHITECTURES: "tridal.ops.planning:architecture_names",
    PROVIDERS: "tridal.benchmarks.providers:PROVIDERS",
    CLASSES: "tridal.benchmarks.workloads:SHAPE_CLASSES",
}
"""The collection of accepted values, or a function that returns it, in a module that imports torch."""


def requested(device: str, source: str) -> str:
    """Describes the device of a command and what selects it."""
    return f"device {device!r}, {'the default' if source == setting_table.DEFAULT else f'from {source}'}"


def _values(placeholder: str) -> Iterable[str]:
    if placeholder == DEVICES:
        return registry.device_names()
    if placeholder == DTYPES:
        aliases = {name: [alias for alias, known in DTYPE_ALIASES.items() if known == name] for name in ITEMSIZE}
        return [f"{name} ({', '.join(aliases[name])})" for name in ITEMSIZE]
    if broken.torch_problem() is not None:
        return ["unknown because torch cannot be imported"]
    found = resolve_name(_WITH_TORCH[placeholder])
    return found() if callable(found) else found  # type: ignore[no-any-return]


class CommandWithOps(TyperCommand):
    """A command whose help text lists values. Other calls do not look them up, because that imports torch.

    Only the command itself writes to stdout.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        with reserved():
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help text. Replaces the placeholders by values."""
        command = copy.copy(self)
        command.params = [copy.copy(parameter) for parameter in self.params]
        for option in command.params:
            if isinstance(option, TyperOption):
                for placeholder in filter((option.help or "").__contains__, (DEVICES, DTYPES, *_WITH_TORCH)):
                    option.help = (option.help or "").replace(placeholder, ", ".join(_values(placeholder)))
        super(CommandWithOps, command).format_help(ctx, formatter)


@contextmanager
def wrong_usage(option: str | None = None) -> Iterator[None]:
    """Turns the error for an unknown name, or for another wrong value of an option, into typer.BadParameter."""
    try:
        yield
    except (PlanError, DTypeError, UnknownDeviceError) as error:
        raise typer.BadParameter(str(error).removeprefix(f"{option}: "), param_hint=option) from error


def check_op(name: str) -> str:
    """Returns `name` if the op can be used. Otherwise raises typer.BadParameter with a suggestion."""
    from tridal.ops import table

    with wrong_usage("--op"):
        return table.op_named(name).name


def choose_device(name: str | None) -> tuple[CheckedBackend | None, str]:
    """Resolves the option --device or, without it, the device of the settings, see `registry.resolve`.

    Raises typer.BadParameter if no device has the name.
    """
    from tridal.pytorch.devices import TORCH_TYPES

    if not name:
        return registry.resolve_chosen(settings.current(), TORCH_TYPES)
    with wrong_usage("--device"):
        return registry.resolve(name, TORCH_TYPES, "--device: ")
