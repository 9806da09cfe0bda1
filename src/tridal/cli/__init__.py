"""The command line: `tridal doctor`, `plan`, `check`, `bench` and `config`.

Commands import torch inside functions only, so that `tridal doctor` runs even if torch cannot be imported.
Exit codes: 0 for success; 1 for a failure; 2 for wrong usage; 130 if interrupted; 141 if the output's reader has ended.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tridal import __version__, interrupts
from tridal.cli import bench, broken, check, config, doctor, plan
from tridal.cli.op_option import CommandWithOps
from tridal.cli.output import file_errors, print_error, reserve_descriptor
from tridal.errors import TridalError


class _Group(TyperGroup):
    """Prints expected errors as one sentence on stderr, and exits with 1."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command. Prints help texts, which click does before `invoke`."""
        with file_errors():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        try:
            with file_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(interrupts.EXIT_CODE) from error
        except TridalError as error:
            print_error(error.for_commands())
            raise typer.Exit(1) from error
        except ImportError as error:
            if (problem := broken.torch_problem()) is None:
                raise
            print_error(f"{problem}; run `tridal doctor` for details")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (doctor.doctor, plan.plan, check.check, bench.bench, config.config):
    # click cuts the text that it takes from a docstring, but not a given one.
    app.command(cls=CommandWithOps, short_help=(_command.__doc__ or "").partition("\n")[0])(_command)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tridal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Speed up PyTorch models with Triton kernels, on any device with a backend.

    Start with `tridal doctor`, which shows the available devices, and `tridal check`, which tests the kernels on one.
    """


def main() -> None:
    """Runs the command `tridal`."""
    interrupts.raise_at_interrupt()
    reserve_descriptor()
    app()
