"""The command line: `tridal doctor`, `plan`, `check`, `bench` and `config`.

Modules of this package import torch inside functions only: `tridal doctor` runs, and explains, where torch is broken.
Exit codes: 0 all is well, 1 it is not (a message on stderr says why and what to do), 2 wrong usage.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tridal import __version__
from tridal.cli import bench, broken, check, config, doctor, plan
from tridal.errors import TridalError


class _Group(TyperGroup):
    """Says what a person got wrong as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TridalError as error:
            print(f"tridal: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        except ImportError as error:
            if broken.reason() is None:
                raise
            print(f"tridal: {error}; `tridal doctor` says more", file=sys.stderr)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (doctor.doctor, plan.plan, check.check, bench.bench, config.config):
    app.command()(_command)


def _version(asked: bool) -> None:
    if asked:
        print(f"tridal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One fused Triton softmax for every device: `tridal doctor` says what is here, `tridal check` that it works."""


def main() -> None:
    """The command `tridal`."""
    app()
