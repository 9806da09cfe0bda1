"""The classes of the installed transformers that compute what tridal has: what each computes, and a module of it.

What a class computes is read from its source, and does not depend on what tridal recognizes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from tridal.models import rotary
from tridal.models.reads import own_forward

NORM = re.compile(r"(?<!Stable)(?<!Dropout)(RMS|Layer|L2)_?Norm(Gated|1P|2d|Zero\w*)?$")
ACTIVATION = re.compile(r"act(_|$|ivation)|silu|gelu|swish|relu|ACT2FN", re.IGNORECASE)
OPEN: dict[str, Any] = {
    "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 8, "top_k_experts": 8,
    "moe_intermediate_size": 8, "intermediate_size": 8, "ffn_hidden_size": 8, "hidden_size": 8, "adapter_rank": 8,
    "dropout_rate": 0.0, "mlp_bias": False, "attention_bias": False,
}  # fmt: skip
"""Numbers of configurations that some classes read and their configurations leave open."""
NO_MLP = re.compile(
    "^(?!.*M(LP|lp)$).*(Attention|DeltaNet|MoE?$|Moe|Head$|Encoder|Layer$|Scorer|Indexer|Mixer|Mamba|Conv|Conformer|"
    "Modulation|Block$|Expert|Pool)"
)
"""Names of classes that gate something else than the product between two linear layers."""


def classes(folder: str = "*") -> Iterator[tuple[str, Any, Any]]:
    """Yields the folder, the Python module and each class of a module, of one folder or of all."""
    for file in sorted(pathlib.Path(transformers.__file__).parent.glob(f"models/{folder}/modeling_*.py")):
        try:
            module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        except ImportError:  # an optional package
            continue
        for kind in vars(module).values():
            own = isinstance(kind, type) and kind.__module__ == module.__name__ and not inspect.isabstract(kind)
            if own and issubclass(kind, torch.nn.Module) and own_forward(stub(kind)) is not None:
                yield file.parent.name, module, kind


def stub(kind: Any) -> Any:
    """Returns a module without attributes."""
    module = object.__new__(kind)
    torch.nn.Module.__init__(module)
    return module


def _source(function: Any) -> str:
    return textwrap.dedent(inspect.getsource(function))


def kind_of(kind: Any) -> str | None:
    """Returns what a class computes, or None."""
    name, source = kind.__name__, _source(own_forward(stub(kind)))
    made = _source(kind.__init__) if "__init__" in vars(kind) else ""
    if re.search("ForCausalLM$|LMHeadModel$", name):
        return "losses" if "labels" in inspect.signature(kind.forward).parameters else None
    if rotary.function_name(stub(kind)) is not None:
        return "rotary"
    if NORM.search(name):
        return "norms"
    if re.search("Router|Gate$|Gating$", name) and "topk" in _source(kind):
        return "routers"
    if re.search("Expert", name) and re.search(r"Parameter\(", made):
        return "experts"
    layers = len(re.findall("Linear\\(|Conv1D\\(", made))
    if layers > 1 and not NO_MLP.search(name) and _multiplies_activation(ast.parse(source)):
        return "gated MLPs"
    return None


def _multiplies_activation(tree: ast.AST) -> bool:
    """Whether a product has a factor that is the result of an activation."""
    activated: set[str] = set()

    def is_activated(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            name = ast.unparse(called).rpartition(".")[2]
            return bool(ACTIVATION.search(name)) or (isinstance(called, ast.Attribute) and is_activated(called.value))
        return isinstance(node, ast.Name) and node.id in activated

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_activated(node.value):
            activated |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    products = (n for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult))
    return any(is_activated(n.left) or is_activated(n.right) for n in products)


def _configs(kind: Any, module: Any) -> Iterator[Any]:
    """Yields the configurations that a class may take: first that of its annotation, then others of its Python module.

    The second time, the numbers that a configuration leaves open are 8.
    """
    annotation = str(getattr(inspect.signature(kind.__init__).parameters.get("config"), "annotation", ""))
    known = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, transformers.PreTrainedConfig)]
    for open_numbers in ({}, OPEN):
        for config in sorted(known, key=lambda config: config.__name__ not in annotation):
            try:
                outer = config()
            except Exception:  # some need arguments
                continue
            for made in (outer, *(v for v in vars(outer).values() if isinstance(v, transformers.PreTrainedConfig))):
                missing = {name: value for name, value in open_numbers.items() if _is_open(made, name)}
                if getattr(made, "dense_act_fn", None) == "relu":  # T5 has gated layers only with another activation
                    made.dense_act_fn = "gelu_new"
                made.__dict__.update({"_experts_implementation": "grouped_mm", **missing})
                yield made


def _is_open(config: Any, name: str) -> bool:
    """Whether a configuration leaves a number open. One whose layers differ raises an error for those of a layer."""
    try:
        return getattr(config, name, None) is None
    except RuntimeError:
        return False


def _argument(name: str, config: Any) -> Any:
    """Returns a value for a required argument of a constructor."""
    given = {"eps": 1e-6, "act": "silu", "idx": 0, "drop": 0.0, "bias": False, "type": None}
    return config if "config" in name else next((value for part, value in given.items() if part in name), 64)


def make(kind: Any, module: Any) -> Any:
    """Returns a module of a class, or why it cannot be made from a default configuration."""
    parameters = [*inspect.signature(kind.__init__).parameters.values()][1:]
    required = [p.name for p in parameters if p.default is p.empty and p.kind in (1, 3)]
    if any(name in ("hidden_size", "dim", "size", "param_shape") for name in (p.name for p in parameters[:1])):
        required = [parameters[0].name, *(name for name in required if name != parameters[0].name)]
    reason = "no configuration"
    for config in _configs(kind, module) if any("config" in name for name in required) else [None]:
        for width in ({}, {"intermediate_size": 128}):
            more = {name: value for name, value in width.items() if name in (p.name for p in parameters)}
            try:
                with torch.device("meta"):
                    return kind(**{**{name: _argument(name, config) for name in required}, **more})
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".split("\n")[0]
    return reason
