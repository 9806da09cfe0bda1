"""`tridal config`: the settings in force and where each came from, or whether a settings file is sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tridal.devices import registry, settings
from tridal.devices.settings import FIELDS, Settings
from tridal.errors import SettingsError, UnknownDeviceError


def effective(chosen: Settings) -> dict[str, dict[str, Any]]:
    """Every setting by dotted key, each with its "value" and "source"; backends' options that nobody set included."""
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
        Path | None, typer.Option("--check", metavar="FILE", help="Check a settings file instead, and use none.")
    ] = None,
) -> None:
    """Show the settings in force, each with where it came from."""
    if check is not None:
        _report_on(check, as_json)
        return
    chosen = settings.current()
    _check(chosen)
    file = settings.config_file()
    rows = effective(chosen)
    if as_json:
        print(json.dumps({"file": None if file is None else str(file), "settings": rows}, indent=2, default=str))
        return
    _print_table(rows, "no settings file" if file is None else f"settings file: {file}")


def _check(chosen: Settings) -> None:
    from tridal.pytorch.devices import TORCH_TYPES  # imports torch

    registry.check(chosen, TORCH_TYPES)


def _report_on(file: Path, as_json: bool) -> None:
    try:
        chosen = settings.read_file(file)
        _check(chosen)
    except (SettingsError, UnknownDeviceError) as error:
        if not as_json:
            raise
        print(json.dumps({"file": str(file), "ok": False, "error": str(error)}, indent=2))
        raise typer.Exit(1) from None
    if as_json:
        report = {"file": str(file), "ok": True, "settings": effective(chosen)}
        print(json.dumps(report, indent=2, default=str))
    else:
        print(f"{file}: ok")


def _row(value: Any, chosen: Settings, key: str) -> dict[str, Any]:
    return {"value": value, "source": chosen.sources.get(key, settings.DEFAULT)}


def _print_table(rows: dict[str, dict[str, Any]], caption: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "from", caption=caption, caption_justify="left")
    for key, row in rows.items():
        table.add_row(key, str(row["value"]), row["source"])
    Console().print(table)
