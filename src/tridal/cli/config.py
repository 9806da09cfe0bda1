"""`tridal config`: prints the settings in force with their sources, or checks a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tridal.cli.output import console, escape, print_json, table
from tridal.devices import registry, settings
from tridal.devices.settings import FIELDS, Settings
from tridal.errors import SettingsError, UnknownDeviceError


def config(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="FILE", help="Only check this settings file; the settings in force are ignored."
        ),
    ] = None,
) -> None:
    """Show the settings in force and the source of each value."""
    if check is not None:
        _check_file(check, as_json)
        return
    rows, file = _checked(settings.current()), settings.config_file()
    if as_json:
        print_json({"file": file, "settings": rows})
        return
    out = console()
    out.print(settings_table(rows))
    out.print("no settings file" if file is None else f"settings file: {escape(str(file))}", soft_wrap=True)


def _check_file(file: Path, as_json: bool) -> None:
    try:
        rows = _checked(settings.read_file(file))
    except (SettingsError, UnknownDeviceError) as error:
        if not as_json:
            raise
        print_json({"file": file, "ok": False, "error": str(error)})
        raise typer.Exit(1) from None
    if as_json:
        print_json({"file": file, "ok": True, "settings": rows})
    else:
        print(f"{file}: ok")


def _checked(chosen: Settings) -> dict[str, dict[str, Any]]:
    from tridal.pytorch.devices import TORCH_TYPES

    registry.check(chosen, TORCH_TYPES)
    return effective(chosen)


def effective(chosen: Settings) -> dict[str, dict[str, Any]]:
    """Returns the "value" and the "source" of every setting, by dotted key. Includes the options of all backends."""
    values = {key: getattr(chosen, key) for key in FIELDS}
    for backend in registry.loaded():
        options = registry.options(backend, chosen)
        values |= {f"backends.{backend.name}.{option}": value for option, value in options.items()}
    return {key: {"value": value, "source": chosen.sources.get(key, settings.DEFAULT)} for key, value in values.items()}


def settings_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Formats the result of `effective` as a table for the terminal."""
    result = table("setting", "value", "source")
    for key, row in rows.items():
        result.add_row(key, escape(str(row["value"])), escape(row["source"]))
    return result
