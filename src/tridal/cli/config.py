"""`tridal config`: prints the settings in force with their sources, or checks a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tridal.cli.output import console, escape, print_json, table
from tridal.devices import registry, settings
from tridal.devices.settings import FIELDS, Settings
from tridal.errors import SettingsError, UnknownDeviceError


def effective(chosen: Settings) -> dict[str, dict[str, Any]]:
    """Returns the "value" and the "source" of every setting, by dotted key.

    The options of all backends are included, also those that still have their default.
    """
    rows = {key: _row(getattr(chosen, key), chosen, key) for key in FIELDS}
    for entry in registry.registered():
        if entry.backend is not None:
            for option, value in registry.options(entry.backend, chosen).items():
                key = f"backends.{entry.name}.{option}"
                rows[key] = _row(value, chosen, key)
    return rows


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
    chosen = settings.current()
    _check(chosen)
    file = settings.config_file()
    rows = effective(chosen)
    if as_json:
        print_json({"file": None if file is None else str(file), "settings": rows})
        return
    settings_table = table("setting", "value", "source")
    for key, row in rows.items():
        settings_table.add_row(key, escape(str(row["value"])), escape(row["source"]))
    out = console()
    out.print(settings_table)
    out.print("no settings file" if file is None else f"settings file: {escape(str(file))}", soft_wrap=True)


def _check(chosen: Settings) -> None:
    from tridal.pytorch.devices import TORCH_TYPES  # imports torch

    registry.check(chosen, TORCH_TYPES)


def _check_file(file: Path, as_json: bool) -> None:
    try:
        chosen = settings.read_file(file)
        _check(chosen)
    except (SettingsError, UnknownDeviceError) as error:
        if not as_json:
            raise
        print_json({"file": str(file), "ok": False, "error": str(error)})
        raise typer.Exit(1) from None
    if as_json:
        print_json({"file": str(file), "ok": True, "settings": effective(chosen)})
    else:
        print(f"{file}: ok")


def _row(value: Any, chosen: Settings, key: str) -> dict[str, Any]:
    return {"value": value, "source": chosen.sources.get(key, settings.DEFAULT)}
