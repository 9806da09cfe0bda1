"""`tridal doctor`: what is installed, what each backend can do, and what runs where. It survives a broken torch."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib import metadata
from typing import Annotated, Any

import typer

from tridal import __version__
from tridal.cli import broken
from tridal.cli.config import effective
from tridal.cli.output import FAIL, PASS, console, count, escape, grid, print_json, size, table
from tridal.devices import registry, settings
from tridal.devices.plugins import words
from tridal.devices.types import ITEMSIZE, Backend
from tridal.errors import SettingsError


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what is installed and what each device can do; exit code 1 if the device that is chosen can't be used."""
    report = examine()
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not report["device"]["usable"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that the command prints, as data. Never raises."""
    torch_problem = broken.reason()
    tritons = _providing("triton")
    problems = [] if torch_problem is None else [f"torch can't be imported: {torch_problem}"]
    if len(tritons) > 1:
        problems.append(
            f"{' and '.join(tritons)} are installed together and overwrite each other's package 'triton': "
            "uninstall all of them, then install the one for your device"
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        problems.append(
            "TRITON_INTERPRET=1 is set: Triton can't compile; tridal's interpreter doesn't need it, unset it"
        )
    chosen = _settings(problems)
    backends = [_backend(entry) for entry in registry.registered()]
    return {
        "versions": {
            "tridal": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "torch": _version("torch"),
            "triton": next(iter(tritons.values()), None),
            "triton_distribution": next(iter(tritons), None),
            "numpy": _version("numpy"),
        },
        "problems": problems,
        "backends": backends,
        "devices": [device for entry in registry.registered() for device in _devices(entry, problems)],
        "settings": chosen,
        "device": _chosen_device(),
        "fallbacks": _fallbacks(),
    }


def _providing(package: str) -> dict[str, str]:
    """The distributions that bring a package, and their versions. One overwrites another."""
    names = metadata.packages_distributions().get(package, [])
    return {name: metadata.version(name) for name in sorted(set(names))}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _settings(problems: list[str]) -> dict[str, Any]:
    try:
        file = settings.config_file()
        return {"file": None if file is None else str(file), "values": effective(settings.current())}
    except Exception as error:
        problems.append(f"the settings can't be used: {error}")
        return {"file": None, "values": {}}


def _backend(entry: registry.Registered) -> dict[str, Any]:
    backend = entry.backend
    problem = entry.problem or (registry.unavailable(backend) if backend is not None else None)
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


def _devices(entry: registry.Registered, problems: list[str]) -> list[dict[str, Any]]:
    backend = entry.backend
    if backend is None or entry.problem or registry.unavailable(backend) is not None:
        return []
    try:
        return [
            {"backend": backend.name, "index": index, **asdict(backend.properties(index))}
            for index in range(backend.device_count())
        ]
    except Exception as error:  # somebody else's code
        problems.append(f"backend {entry.name!r} of {entry.origin} can't describe its devices: {words(error)}")
        return []


def _chosen_device() -> dict[str, Any]:
    """What the settings choose, and whether a softmax comes out of it."""
    found: dict[str, Any] = {"asked": None, "source": None, "device": None, "backend": None, "usable": False}
    try:
        asked = settings.current()
    except SettingsError:
        return {**found, "problem": "the settings can't be used"}
    found |= {"asked": asked.device, "source": asked.sources["device"]}
    try:
        import torch

        import tridal
        from tridal.pytorch.devices import TORCH_TYPES

        registry.check(asked, TORCH_TYPES)
        backend, place = registry.resolve(asked.device, TORCH_TYPES)
        found |= {"device": place, "backend": None if backend is None else backend.name}
        result = tridal.softmax(torch.zeros(2, 3, device=place)).sum().item()
        if place != "meta" and abs(result - 2) > 1e-6:
            raise RuntimeError(f"two rows of a softmax summed to {result}")
    except Exception as error:
        return {**found, "problem": words(error)}
    return {**found, "usable": True, "problem": None}


def _fallbacks() -> list[str]:
    """Where torch computes, or an error is raised, instead of a kernel of tridal's."""
    try:
        from tridal.pytorch.devices import TORCH_TYPES

        chosen = settings.current()
        act = "torch computes" if chosen.fallback == "torch" else "an error is raised for (fallback: error)"
        known = [entry.backend for entry in registry.registered() if entry.backend is not None]
        kinds = sorted(kind for kind in {backend.device_type for backend in known} if kind in TORCH_TYPES)
        serving = {kind: registry.serving(kind, chosen) for kind in kinds}
    except Exception:  # said elsewhere in the report
        return []
    said = []
    for kind, backend in serving.items():
        if backend is None:
            said.append(f"{act} {kind} tensors{_interpreter_hint(kind, known)}")
        elif missing := sorted(set(ITEMSIZE) - backend.dtypes):
            said.append(f"{act} {', '.join(missing)} tensors on {kind}: backend {backend.name!r} does not")
    return said


def _interpreter_hint(kind: str, known: list[Backend]) -> str:
    names = [backend.name for backend in known if backend.interpreted and backend.device_type == kind]
    return (
        f" (TRIDAL_DEVICE={names[0]} interprets the kernels there)"
        if names
        else ": no backend that serves them is available"
    )


def _show(report: dict[str, Any]) -> None:
    out = console()
    versions = report["versions"]
    facts = grid("cyan", "")
    for name in ("tridal", "python", "torch", "numpy"):
        facts.add_row(name, versions[name] or "not installed")
    distribution = versions["triton_distribution"]
    facts.add_row("triton", f"{versions['triton']} ({distribution})" if distribution else "not installed")
    facts.add_row("platform", versions["platform"])
    out.print(facts)

    backends = table("backend", "here", "from", "devices, or the reason why not")
    for backend in report["backends"]:
        told = "\n".join(_device_line(d) for d in report["devices"] if d["backend"] == backend["name"])
        told = escape(told if backend["available"] else backend["reason"])
        if backend["install"]:
            told += f"\n[dim]to get it: {escape(backend['install'])}[/]"
        backends.add_row(backend["name"], "[green]yes[/]" if backend["available"] else "no", backend["origin"], told)
    out.print(backends)

    values = table("setting", "value", "from")
    for key, row in report["settings"]["values"].items():
        values.add_row(key, escape(str(row["value"])), escape(row["source"]))
    out.print(values)

    for fallback in report["fallbacks"]:
        out.print(f"[yellow]note[/] {escape(fallback)}", soft_wrap=True)
    for problem in report["problems"]:
        out.print(f"{FAIL} {escape(problem)}", soft_wrap=True)
    device = report["device"]
    asked = f"device {device['asked']!r} (from {device['source']})" if device["asked"] else "the device"
    if device["usable"]:
        who = f"backend {device['backend']!r}" if device["backend"] else "torch"
        out.print(f"{PASS} {asked} is {device['device']}: {who} computes its tensors", soft_wrap=True)
    else:
        out.print(f"{FAIL} {asked} can't be used: {escape(device['problem'])}", soft_wrap=True)


def _device_line(device: dict[str, Any]) -> str:
    parts = [f"{device['index']}: {device['name']} ({device['arch']}), {count(device['cores'], device['core_name'])}"]
    parts += [f"{device['registers']:,} registers"] if device["registers"] else []
    parts += [f"{size(device['shared_memory'])} fast memory"] if device["shared_memory"] else []
    parts += [f"{size(device['l2_cache'])} L2"] if device["l2_cache"] else []
    parts += [size(device["memory"])] if device["memory"] else []
    return ", ".join(parts)
