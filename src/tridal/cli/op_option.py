"""The option `--op` of the commands: its choices are the ops in the table, including those of third parties."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from tridal.cli import broken
from tridal.errors import PlanError

OPS, KERNELS = "<ops>", "<ops and gradients>"
"""Placeholders in an option's help text for the names of all ops, and of all ops and their gradients."""


class CommandWithOps(TyperCommand):
    """A command whose help texts list the ops. The table of ops imports torch, so only `--help` reads it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help, with names in place of `OPS` and `KERNELS`."""
        options = [parameter for parameter in self.params if isinstance(parameter, TyperOption)]
        texts = [option.help for option in options]
        ops, kernels = _names()
        try:
            for option in options:
                option.help = (option.help or "").replace(OPS, ops).replace(KERNELS, kernels)
            super().format_help(ctx, formatter)
        finally:
            for option, text in zip(options, texts, strict=True):
                option.help = text


def _names() -> tuple[str, str]:
    """Returns the names of all ops, and of all ops and their gradients."""
    if broken.torch_problem() is not None:
        return ("unknown because torch cannot be imported",) * 2
    from tridal.ops import table

    return ", ".join(table.ops()), ", ".join(table.kernels())


def check_op(name: str) -> str:
    """Returns the name of an op that can be used.

    Raises:
        typer.BadParameter: the op is unknown or cannot be used. The message suggests similar names.
    """
    from tridal.ops import table

    try:
        return table.op_named(name).name
    except PlanError as error:
        raise typer.BadParameter(str(error), param_hint="--op") from error
