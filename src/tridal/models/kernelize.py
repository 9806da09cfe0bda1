"""`tridal.kernelize`: replaces the modules of a model that tridal computes."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import torch

from tridal.models import replacements
from tridal.models.candidates import Decision, decide, decide_loss
from tridal.models.report import Entry, Report
from tridal.pytorch.device_context import is_served, log

Skip = str | type[torch.nn.Module]


def kernelize(model: torch.nn.Module, *, fused_loss: bool = False, skip: Skip | Sequence[Skip] = ()) -> Report:
    """Makes tridal compute the norms, the softmax modules and the loss of a model, whose modules stay the same objects.

    Replaced are RMSNorm and LayerNorm modules, torch.nn.Softmax and torch.nn.LogSoftmax, and the loss of causal
    language models of transformers. A class of norms is replaced only if a copy with random weights computes the same
    as tridal, including the order of rounding. Parameters, hooks, state dicts, copies and pickles are as before. On
    devices that no backend serves, and for dtypes for which the class computes something else, its own forward runs.

    Args:
        model: any module. Its submodules are searched, too.
        fused_loss: in training with labels, computes the loss of a causal language model from the input of its last
            linear layer with `tridal.linear_cross_entropy`. The logits are not computed, and `outputs.logits` is None.
        skip: modules that are left unchanged: names in the model, which may have the wildcards of fnmatch, or classes.

    Returns:
        A report of what was replaced, what was not, and why. `report.restore()` undoes it.
        `with tridal.kernelize(model):` restores the model at the end of the block.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a name in `skip` matches no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    report = replace_modules(model, fused_loss, skip)
    for note in report.notes:
        log.warning("kernelize of %s: %s", report.model, note)
    return report


def replace_modules(model: torch.nn.Module, fused_loss: bool = False, skip: Skip | Sequence[Skip] = ()) -> Report:
    """Does the same without messages in the log."""
    skipped = _skipped(model, skip)
    entries: list[Entry] = []
    decisions: list[tuple[torch.nn.Module, Decision]] = []
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if module in skipped:
            continue
        if replacements.is_replaced(module):
            entries.append(Entry(name, type(module).__name__, None, "it is replaced already"))
            continue
        norm = decide(module)
        found = [(module, norm)] if norm is not None else decide_loss(module, _head(module, skipped), fused_loss)
        decisions += found
    for module, decision in decisions:
        entries.append(Entry(names[module], type(module).__name__, decision.by, decision.reason))
    replaced = [(module, type(module)) for module, decision in decisions if decision.kind is not None]
    for module, decision in decisions:
        if decision.kind is not None:
            replacements.replace(module, decision.kind, decision.form)
    return Report(type(model).__name__, tuple(entries), _notes(model, entries), replaced)


def _head(module: torch.nn.Module, skipped: set[torch.nn.Module]) -> torch.nn.Module | None:
    """Returns the linear layer that computes the logits of a model of transformers, or None."""
    find = getattr(module, "get_output_embeddings", None)
    head = find() if callable(find) else None
    return None if head in skipped else head


def _skipped(model: torch.nn.Module, skip: Skip | Sequence[Skip]) -> set[torch.nn.Module]:
    """Returns the modules that the argument `skip` excludes."""
    skipped: set[torch.nn.Module] = set()
    modules = dict(model.named_modules(remove_duplicate=False))
    for pattern in [skip] if isinstance(skip, (str, type)) else skip:
        if isinstance(pattern, type) and issubclass(pattern, torch.nn.Module):
            skipped |= {module for module in modules.values() if isinstance(module, pattern)}
        elif isinstance(pattern, str):
            found = {module for name, module in modules.items() if fnmatch.fnmatchcase(name, pattern)}
            if not found:
                raise ValueError(f"skip={pattern!r} is the name of no module: see the names in model.named_modules()")
            skipped |= found
        else:
            raise TypeError(f"skip takes names of modules and classes of modules, got {pattern!r}")
    return skipped


def _notes(model: torch.nn.Module, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Returns what a user should know about the whole model."""
    notes = []
    if not entries:
        notes.append("it has no norm, no softmax module and no loss that tridal may compute")
    kinds = sorted(kind for kind in {p.device.type for p in model.parameters()} - {"meta"} if not is_served(kind))
    if kinds and any(entry.replaced_by for entry in entries):
        notes.append(
            f"no backend serves {' and '.join(kinds)} tensors: the replaced modules compute as before until the model "
            "is on a device that a backend serves; see `tridal doctor`"
        )
    return tuple(notes)
