"""`tridal doctor`: reports versions, backends, ops, devices and settings. Runs even if torch cannot be imported."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any

import typer

from tridal import __version__
from tridal.cli import broken, tested_versions
from tridal.cli.config import effective, settings_table
from tridal.cli.op_option import Json, requested
from tridal.cli.output import FAIL, PASS, console, count, escape, grid, print_json, size, table
from tridal.devices import registry, setting_table, settings, settings_file
from tridal.devices.entry_points import describe_error, unreadable
from tridal.devices.types import ITEMSIZE
from tridal.errors import SettingsError, TridalError

_YES_NO = {True: "[green]yes[/]", False: "no"}


def doctor(as_json: Json = False) -> None:
    """Show versions, backends, ops, devices and settings.

    The exit code is 1 if the device that the settings select cannot be used.
    """
    report = examine()
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not report["device"]["usable"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Makes the report of the command, as data. Never raises an error, but adds it to "problems"."""
    torch_problem = broken.torch_problem()
    tritons = _distributions("triton")
    problems = [] if torch_problem is None else [torch_problem]
    if len(tritons) > 1:
        problems.append(
            f"{' and '.join(tritons)} are installed together and overwrite each other's package 'triton'. "
            "Uninstall all of them, then install the one for your device"
        )
    effective_settings = _settings(problems)
    problems += [*unreadable(), *registry.find_architectures()[1]]
    devices = [device for entry in registry.registered() for device in _devices(entry, problems)]
    versions = {
        "tridal": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _version("torch"),
        "triton": next(iter(tritons.values()), None),
        "triton_distribution": next(iter(tritons), None),
        "numpy": _version("numpy"),
    }
    return {
        "versions": versions,
        "warnings": tested_versions.warnings(versions),
        "problems": problems,
        "backends": [_backend(entry) for entry in registry.registered()],
        "ops": _ops(problems),
        "devices": devices,
        "settings": effective_settings,
        "device": _chosen_device(),
        "fallbacks": _fallbacks(),
        "notes": _notes(),
    }


def _distributions(package: str) -> dict[str, str]:
    """Finds the versions of the installed distributions that contain a package, by name."""
    try:
        names = {*metadata.packages_distributions().get(package, ())} - {None}
    except Exception:  # the metadata of any distribution cannot be read
        names = {package} if _version(package) else set()
    return {name: metadata.version(name) for name in sorted(names)}


def _version(distribution: str) -> str | None:
    return next((found.version for found in metadata.distributions(name=distribution)), None)


def _settings(problems: list[str]) -> dict[str, Any]:
    try:
        return {"file": settings.config_file(), "values": effective(settings.current())}
    except Exception as error:
        problems.append(f"the settings cannot be used: {error}")
        return {"file": None, "values": {}}


def _backend(entry: registry.Registered) -> dict[str, Any]:
    backend = entry.backend
    problem = entry.fault if backend is None else backend.unavailable()
    return {
        "name": entry.name,
        "origin": entry.origin,
        "device_type": None if backend is None else backend.device_type,
        "interpreted": None if backend is None else backend.interpreted,
        "dtypes": [] if backend is None else sorted(backend.dtypes),
        "available": problem is None,
        "reason": problem,
        "install": None if backend is None or problem is None else backend.install,
    }


def _ops(problems: list[str]) -> list[dict[str, Any]]:
    """Lists the registered ops, with the reason if an op cannot be used. Without torch, the list is empty."""
    if broken.torch_problem() is not None:
        return []
    try:
        from tridal.ops import table

        entries = table.registered()
    except Exception as error:
        problems.append(f"the ops cannot be listed: {describe_error(error)}")
        return []
    return [{"name": op.name, "origin": op.origin, "usable": op.fault is None, "reason": op.fault} for op in entries]


def _devices(entry: registry.Registered, problems: list[str]) -> list[dict[str, Any]]:
    backend = entry.backend
    if backend is None or entry.fault or backend.unavailable() is not None:
        return []
    try:
        devices = [asdict(backend.properties(index)) for index in range(backend.device_count())]
    except TridalError as error:
        problems.append(str(error))
        return []
    return [{"backend": backend.name, "index": index, **device} for index, device in enumerate(devices)]


def _chosen_device() -> dict[str, Any]:
    """Runs an op on the device that the settings select. Returns the device, and whether the result is right."""
    report: dict[str, Any] = dict.fromkeys(("asked", "source", "device", "backend")) | {"usable": False}
    try:
        current = settings.current()
    except SettingsError:
        return {**report, "problem": "the settings cannot be used"}
    report |= {"asked": current.device, "source": current.sources["device"]}
    if broken.torch_problem() is not None:
        return {**report, "problem": "torch cannot be imported"}
    try:
        import torch

        from tridal.ops import row_math, table
        from tridal.pytorch.devices import TORCH_TYPES
        from tridal.testing.implementation import public_function

        backend, device = registry.resolve_chosen(current, TORCH_TYPES)
        report |= {"device": device, "backend": None if backend is None else backend.name}
        op = table.first()
        x = torch.arange(6.0).view(2, 3)
        found, expected = (
            public_function(op.name)(x.to(device), -1),
            row_math.reference_of(op, x, -1, tuple(op.parameters.values())),
        )
        if device != "meta" and not (found.cpu() - expected).abs().max() <= 1e-6:
            raise RuntimeError(f"{op.name} of {x.tolist()} is wrong: {found.tolist()}")
    except Exception as error:
        return {**report, "problem": describe_error(error)}
    return {**report, "usable": True, "problem": None}


def _fallbacks() -> list[str]:
    """Writes one line for each device type with tensors that tridal's kernels do not compute."""
    lines = []
    try:
        from tridal.pytorch.devices import TORCH_TYPES

        current = settings.current()
        template = "torch computes {}" if current.fallback == "torch" else "{} raise an error (fallback: error)"
        backends = registry.loaded()
        for kind in sorted({backend.device_type for backend in backends}):
            if kind not in TORCH_TYPES:
                continue
            serving = registry.serving(kind, current)
            if serving is None:
                names = [b.name for b in backends if b.interpreted and b.device_type == kind]
                hint = "; set TRIDAL_DEVICE={} to run the kernels in Triton's interpreter"
                reason = hint.format(*names) if names else ": no available backend supports them"
                lines.append(f"{template.format(f'{kind} tensors')}{reason}")
            elif missing := sorted(set(ITEMSIZE) - serving.dtypes):
                tensors = template.format(f"{', '.join(missing)} tensors on {kind}")
                lines.append(f"{tensors}: backend {serving.name!r} does not support them")
    except Exception:  # another part of the report shows this error
        return []
    return lines


def _notes() -> list[str]:
    """Writes one line for each part of the user's environment that tridal ignores."""
    lines = [f"the settings in {path} are ignored: {reason}" for path, reason in settings_file.ignored()]
    name = setting_table.TRITON_INTERPRET
    with suppress(SettingsError):
        source = settings.current().sources["device"]
        if setting_table.triton_interprets() and source != setting_table.ENVIRONMENT + name:
            lines.append(
                f"{name} is set, but {source} selects the device. Unset {name}: a program that imports triton "
                "before tridal compiles its first kernel could not compile it"
            )
    return lines


def _show(report: dict[str, Any]) -> None:
    out = console()
    versions = report["versions"]
    distribution = versions["triton_distribution"]
    triton = f"{versions['triton']} ({distribution})" if distribution else "not installed"
    facts = [(name, versions[name] or "not installed") for name in ("tridal", "python", "torch", "numpy")]
    facts += [("triton", triton), ("platform", versions["platform"]), ("tested with", tested_versions.as_text())]
    out.print(grid(*facts))

    headings = ("backend", "available", "provided by", "devices, or why it is not available")
    out.print(table(headings, (_backend_line(backend, report["devices"]) for backend in report["backends"])))
    ops = ((op["name"], _YES_NO[op["usable"]], op["origin"], escape(op["reason"] or "")) for op in report["ops"])
    out.print(table(("op", "usable", "provided by", "why it cannot be used"), ops))
    out.print(settings_table(report["settings"]["values"]))

    notes = report["fallbacks"] + report["notes"]
    for label, lines in (
        ("[yellow]note[/]", notes), ("[yellow]warning[/]", report["warnings"]), (FAIL, report["problems"])
    ):  # fmt: skip
        for line in lines:
            out.print(f"{label} {escape(line)}", soft_wrap=True)
    device = report["device"]
    name = f"{requested(device['asked'], device['source'])}," if device["asked"] else "the device"
    if device["usable"]:
        computes = f"backend {device['backend']!r}" if device["backend"] else "torch"
        out.print(f"{PASS} {name} is {device['device']}: {computes} computes its tensors", soft_wrap=True)
    else:
        out.print(f"{FAIL} {name} cannot be used: {escape(device['problem'])}", soft_wrap=True)


def _backend_line(backend: dict[str, Any], devices: list[dict[str, Any]]) -> tuple[str, ...]:
    lines = "\n".join(_device_line(device) for device in devices if device["backend"] == backend["name"])
    details = escape(lines if backend["available"] else backend["reason"])
    if backend["install"]:
        details += f"\n[dim]requirements: {escape(backend['install'])}[/]"
    return backend["name"], _YES_NO[backend["available"]], backend["origin"], details


def _device_line(device: dict[str, Any]) -> str:
    per_core = f"per {device['core_name']}"
    parts = [f"{device['index']}: {device['name']} ({device['arch']}), {count(device['cores'], device['core_name'])}"]
    if device["registers"]:
        parts.append(f"{device['registers']:,} registers {per_core}")
    sizes = {"shared_memory": f"on-chip memory {per_core}", "l2_cache": "L2", "memory": "memory"}
    parts += [f"{size(device[key])} {label}" for key, label in sizes.items() if device[key]]
    parts += [f"{rate / 1e9:,.0f} GB/s"] if (rate := device["bandwidth"]) else []
    return ", ".join(parts)
