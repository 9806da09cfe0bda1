"""The option `--op` of the commands. It accepts every registered op, including those of third parties."""

from __future__ import annotations

import copy
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from tridal.cli import broken
from tridal.errors import PlanError

OPS, KERNELS = "<ops>", "<ops and gradients>"
"""Placeholders in help texts. `OPS` stands for the names of all ops, `KERNELS` also for their gradients."""


class CommandWithOps(TyperCommand):
    """A command whose help text lists the ops. Other calls do not read the table of ops, because it imports torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help text. Replaces `OPS` and `KERNELS` by names."""
        ops = kernels = "unknown because torch cannot be imported"
        if broken.torch_problem() is None:
            from tridal.ops import table

            ops, kernels = ", ".join(table.ops()), ", ".join(table.kernels())
        command = copy.copy(self)
        command.params = [copy.copy(parameter) for parameter in self.params]
        for option in command.params:
            if isinstance(option, TyperOption) and option.help:
                option.help = option.help.replace(OPS, ops).replace(KERNELS, kernels)
        super(CommandWithOps, command).format_help(ctx, formatter)


def check_op(name: str) -> str:
    """Returns `name` if the op can be used. Otherwise raises typer.BadParameter with a suggestion."""
    from tridal.ops import table

    try:
        return table.op_named(name).name
    except PlanError as error:
        raise typer.BadParameter(str(error), param_hint="--op") from error
