"""`tridal.kernelize`, its report, and `tridal.models.restore`: replace modules that tridal computes, and undo it."""

from __future__ import annotations

import fnmatch
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tridal.devices import registry
from tridal.models import replacements
from tridal.models.candidates import Decision, decide, decide_loss, may_be_replaced
from tridal.models.comparison import isolated
from tridal.models.replacements import class_name
from tridal.ops import check_bool
from tridal.pytorch.device_context import log
from tridal.pytorch.devices import TORCH_TYPES

Skip = str | type[torch.nn.Module]
NOTHING = "it has no norm, no gated MLP, no rotary embedding, no softmax module and no loss that tridal could replace"
_WRAPPER = textwrap.TextWrapper(
    width=78, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)
"""Breaks the lines of a report as text."""


@dataclass(frozen=True)
class Entry:
    """A module that tridal has replaced or could have replaced."""

    name: str
    """The module's name in the model, as in `named_modules`. The model itself has the name ""."""
    class_name: str
    replaced_by: str | None
    """The function of tridal and its arguments, or None if the module is left unchanged."""
    reason: str | None
    """Why the module is left unchanged, or for which inputs it computes itself. None if there is nothing to say."""


@dataclass(eq=False, repr=False)
class Report:
    """What `tridal.kernelize` did to a model. As a context manager, it restores the model at the end of the block."""

    model: str
    """The name of the model's class."""
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    """What concerns the whole model, for example that no backend serves its device."""
    _replaced: list[torch.nn.Module]

    @property
    def replaced(self) -> tuple[Entry, ...]:
        """The modules that were replaced."""
        return tuple(entry for entry in self.entries if entry.replaced_by is not None)

    @property
    def unchanged(self) -> tuple[Entry, ...]:
        """The modules that were left unchanged. Each has a reason."""
        return tuple(entry for entry in self.entries if entry.replaced_by is None)

    def restore(self) -> None:
        """Restores the replaced modules. A second call does nothing."""
        for module in self._replaced:
            replacements.restore(module)
        self._replaced.clear()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as lists, dictionaries and texts, for example for JSON."""
        entries = [asdict(entry) for entry in self.entries]
        return {"model": self.model, "entries": entries, "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.replaced)} modules replaced, {len(self.unchanged)} left unchanged"]
        groups: dict[tuple[str, str | None, str | None], list[str]] = {}
        for entry in self.entries:
            groups.setdefault((entry.class_name, entry.replaced_by, entry.reason), []).append(entry.name or "the model")
        for (kind, by, reason), names in groups.items():
            shown = f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else ", ".join(names)
            text = f"{kind} ({shown}): {by or 'left unchanged'}" + (f"; {reason}" if reason else "")
            lines += _WRAPPER.wrap(text)
        return "\n".join((*lines, *(line for note in self.notes for line in _WRAPPER.wrap(note))))

    __repr__ = __str__


def kernelize(model: torch.nn.Module, *, fused_loss: bool = False, skip: Skip | Sequence[Skip] = ()) -> Report:
    """Replaces operations of a model with tridal's, in place; the module objects stay the same.

    tridal replaces RMSNorm and LayerNorm modules, norm(x) * (1 + scale) + shift in the forward of a module,
    torch.nn.Softmax and torch.nn.LogSoftmax, the activation and product of gated MLPs and experts, the rotary embedding
    of attention modules, and the loss of causal language models of transformers. torch's function replaces an
    activation composed of several operations. The report also gives the reason for each module of these kinds that is
    left unchanged.

    A class is replaced only if tridal computes the same results, including the order of rounding: both are compared on
    random tensors. The class's own forward still runs on devices that no backend serves, and for dtypes in which its
    results differ. Parameters, hooks, state dicts, copies and pickles work as before.

    Args:
        model: any module. Its submodules are included.
        fused_loss: in training with labels, computes the loss of a causal language model from the input of its last
            linear layer with `tridal.linear_cross_entropy`, without the logits: `outputs.logits` is None.
        skip: modules to leave unchanged: names in the model, which may contain the wildcards of fnmatch, or classes.

    Returns:
        A report of the replaced modules, and of those left unchanged with the reason. `report.restore()` restores the
        model, as `with tridal.kernelize(model):` does at the end of the block. `tridal.models.restore` restores a copy
        of the model.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a name in `skip` matches no module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.RMSNorm(4))
        >>> report = tridal.kernelize(model)
        >>> [(entry.name, entry.replaced_by) for entry in report.replaced]
        [('1', "tridal.rms_norm, casting='gemma'")]
        >>> report.restore()
    """
    _check_model(model)
    check_bool("kernelize", "fused_loss", fused_loss)
    report = replace_modules(model, fused_loss, skip)
    for note in report.notes:
        log.warning("kernelize of %s: %s", report.model, note)
    return report


def restore(model: torch.nn.Module) -> None:
    """Undoes `tridal.kernelize` for all modules of a model, which may be a copy or a loaded model.

    Raises:
        TypeError: `model` is not a torch.nn.Module.

    Example:
        >>> import copy
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.RMSNorm(4))
        >>> report = tridal.kernelize(model)
        >>> other = copy.deepcopy(model)  # its norm is replaced, too
        >>> tridal.models.restore(other)
    """
    _check_model(model)
    for module in model.modules():
        replacements.restore(module)


def replace_modules(model: torch.nn.Module, fused_loss: bool = False, skip: Skip | Sequence[Skip] = ()) -> Report:
    """Does the same without messages in the log."""
    skipped = _skipped(model, skip)
    names = {module: name for name, module in model.named_modules()}
    decisions = isolated(lambda: [pair for module in names for pair in _decide(module, skipped, fused_loss)])
    entries = [Entry(names[module], class_name(module), decision.by, decision.reason) for module, decision in decisions]
    replaced = []
    for module, decision in decisions:
        if decision.kind is not None:
            replacements.replace(module, decision.kind, decision.form)
            replaced.append(module)
    notes = device_notes(model) if replaced else [] if entries else [NOTHING]
    return Report(type(model).__name__, tuple(entries), tuple(notes), replaced)


def _decide(module: Any, skipped: set[torch.nn.Module], fused_loss: bool) -> list[tuple[torch.nn.Module, Decision]]:
    """Returns the decision for a module, also for its head if its loss is fused. Returns [] if it is no candidate."""
    if replacements.is_replaced(module):
        return [(module, Decision(reason="it is replaced already; tridal.models.restore(model) undoes it"))]
    if module in skipped:
        return [(module, Decision(reason="it is skipped"))] if may_be_replaced(module) else []
    decision = decide(module)
    if decision is not None:
        return [(module, decision)]
    find_head = getattr(module, "get_output_embeddings", None)
    head = find_head() if callable(find_head) else None
    return decide_loss(module, None if head in skipped else head, fused_loss)


def _skipped(model: torch.nn.Module, skip: Skip | Sequence[Skip]) -> set[torch.nn.Module]:
    skipped: set[torch.nn.Module] = set()
    modules = dict(model.named_modules(remove_duplicate=False))
    for pattern in skip if isinstance(skip, Iterable) and not isinstance(skip, (str, type)) else [skip]:
        if isinstance(pattern, type) and issubclass(pattern, torch.nn.Module):
            skipped |= {module for module in modules.values() if isinstance(module, pattern)}
        elif isinstance(pattern, str):
            found = {module for name, module in modules.items() if fnmatch.fnmatchcase(name, pattern)}
            if not found:
                raise ValueError(f"skip: no module is named {pattern!r}; model.named_modules() lists the names")
            skipped |= found
        else:
            raise TypeError(f"skip must contain names or classes of modules, got {pattern!r}")
    return skipped


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def device_notes(model: torch.nn.Module) -> list[str]:
    """Returns what a user should know about the backends of a model's devices, if modules are replaced."""
    notes = []
    kinds = sorted({(p.device.type, p.dtype) for p in model.parameters() if not p.is_meta}, key=str)
    serving = {kind: registry.serving(kind, known_types=TORCH_TYPES) for kind, _ in kinds}
    if unserved := [kind for kind, backend in serving.items() if backend is None]:
        notes.append(
            f"no backend serves {' and '.join(unserved)} tensors: the replaced modules compute as before until the "
            "model is on a device that a backend serves; see `tridal doctor`"
        )
    notes += [
        f"the backend {backend.name!r} runs the kernels in Triton's interpreter, which truncates to bfloat16: errors "
        "are two to three times as large as on a device, which rounds"
        for kind, backend in serving.items()
        if backend is not None and backend.interpreted and (kind, torch.bfloat16) in kinds
    ]
    return notes
