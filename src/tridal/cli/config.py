"""`tridal config`: prints the settings in force with their sources, or checks a settings file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tridal.cli.op_option import Json
from tridal.cli.output import console, escape, print_json, stdout, table
from tridal.devices import registry, settings, settings_file
from tridal.devices.setting_table import DEFAULT, FIELDS
from tridal.devices.settings import Settings
from tridal.errors import DeviceUnavailableError, SettingsError, TridalError


def config(
    as_json: Json = False,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="FILE", help="Only check this settings file, and ignore the settings in force."
        ),
    ] = None,
) -> None:
    """Show the settings in force and the source of each value."""
    if check is not None:
        _check_file(check, as_json)
        return
    from tridal.ops.table import kernel_configs
    from tridal.pytorch.devices import TORCH_TYPES

    registry.check(settings.current(), TORCH_TYPES)
    kernel_configs(settings.current())
    rows, file = effective(settings.current()), settings.config_file()
    ignored = [{"file": path, "reason": reason} for path, reason in settings_file.ignored()]
    if as_json:
        print_json({"file": file, "ignored": ignored, "settings": rows})
        return
    out = console()
    out.print(settings_table(rows))
    out.print("no settings file" if file is None else f"settings file: {escape(str(file))}", soft_wrap=True)
    for item in ignored:
        out.print(f"[yellow]ignored[/] {escape(str(item['file']))}: {escape(str(item['reason']))}", soft_wrap=True)


def _check_file(file: Path, as_json: bool) -> None:
    from tridal.ops.table import kernel_configs
    from tridal.pytorch.devices import TORCH_TYPES

    errors: list[TridalError] = []
    notes: list[str] = []
    for found in settings.check_file(file):
        try:
            if isinstance(found, SettingsError):
                raise found
            kernel_configs(found)
            registry.resolve_chosen(found, TORCH_TYPES)
        except DeviceUnavailableError as error:  # no mistake, because the file may be for another machine
            notes.append(str(error))
        except TridalError as error:
            errors.append(error)
    in_file = re.compile(rf"{re.escape(str(file))}:(\d+)")
    messages = sorted(map(str, errors), key=lambda message: int(line[1]) if (line := in_file.match(message)) else 0)
    if as_json:
        rows = {} if errors else {"settings": effective(settings.read_file(file))}
        print_json({"file": file, "ok": not errors, "errors": messages, "notes": notes, **rows})
        raise typer.Exit(bool(errors))
    if errors:
        raise errors[0] if len(errors) == 1 else SettingsError("\n".join(messages))
    print(f"{file}: ok", *(f"note: {note}" for note in notes), sep="\n", file=stdout())


def effective(chosen: Settings) -> dict[str, dict[str, Any]]:
    """Lists the "value" and the "source" of every setting, by dotted key. Includes the options of all backends."""
    values = {key: getattr(chosen, key) for key in FIELDS}
    for backend in registry.loaded():
        options = registry.options(backend, chosen)
        values |= {f"backends.{backend.name}.{option}": value for option, value in options.items()}
    return {key: {"value": value, "source": chosen.sources.get(key, DEFAULT)} for key, value in values.items()}


def settings_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Formats the result of `effective` as a table for the terminal."""
    lines = ((key, escape(str(row["value"])), escape(row["source"])) for key, row in rows.items())
    return table(("setting", "value", "source"), lines)
