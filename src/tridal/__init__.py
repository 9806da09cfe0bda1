"""tridal speeds up softmax, norms, gated MLPs, rotary embeddings and losses in PyTorch models with Triton kernels.

`tridal.kernelize(model)` switches a Hugging Face model to these kernels, and functions such as `tridal.softmax` run
on the device of their tensors. The same kernels work on any device, because tridal is a device abstraction layer: a
backend supplies only numbers, namely device properties, a launch plan and a stream.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from typing import TYPE_CHECKING

from tridal import interrupts as _interrupts

_argv = _sys.argv or [""]
_program = _sys.orig_argv[-len(_argv)] if _argv[0] == "-m" else _argv[0]  # with -m, this is the module's name
_program = _os.path.basename(_program).removeprefix("-m")
if _program in ("tridal", "tridal.run"):  # their main functions call `raise_at_interrupt`
    _interrupts.exit_at_interrupt()

from tridal import errors, registry, settings, types  # noqa: E402
from tridal.devices.settings import use  # noqa: E402

_torch_error: Exception | None = None
try:
    import torch as _torch  # noqa: F401
except Exception as error:  # a broken torch may raise any exception; `tridal doctor` reports it
    _torch_error = error
else:
    from tridal import nn
    from tridal.library.gated_norm.functions import gated_rms_norm
    from tridal.library.glu.functions import geglu, swiglu
    from tridal.library.log_probs.functions import log_probs, token_log_probs
    from tridal.library.losses.functions import cross_entropy, linear_cross_entropy
    from tridal.library.modulated_norm.functions import modulated_layer_norm, modulated_rms_norm
    from tridal.library.norms.functions import layer_norm, rms_norm
    from tridal.library.qk_norm.functions import qk_norm_rotary
    from tridal.library.rotary.functions import rotary_embedding
    from tridal.library.router.functions import route_top_k
    from tridal.library.softmax.functions import log_softmax, softmax
    from tridal.models.kernelize import kernelize
    from tridal.ops.planning import plan
    from tridal.pytorch import call_records
    from tridal.pytorch.call_records import record_calls
    from tridal.pytorch.devices import backends, device
    from tridal.pytorch.path.row_functions import row_function
    from tridal.pytorch.torch.override import override_torch, start_from_environment

    # tridal's commands measure and check torch's own functions. They report a wrong variable or device themselves.
    if _program != "tridal" and "tridal.run" not in _sys.orig_argv:
        start_from_environment()
        call_records.start_from_environment()

__all__ = [
    "backends", "cross_entropy", "device", "errors", "gated_rms_norm", "geglu", "kernelize", "layer_norm",
    "linear_cross_entropy", "log_probs", "log_softmax", "models", "modulated_layer_norm", "modulated_rms_norm", "nn",
    "ops", "override_torch", "plan", "qk_norm_rotary", "record_calls", "registry", "rms_norm", "rotary_embedding",
    "route_top_k", "row_function", "run", "settings", "softmax", "swiglu", "testing", "token_log_probs", "types", "use",
]  # fmt: skip
__dir__ = __all__.copy
__version__ = "0.2.0"

if TYPE_CHECKING:  # a checker would accept any name of a module with __getattr__
    from tridal import models, ops, run, testing
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if _torch_error is not None and name not in ("models", "ops", "run", "testing"):
            message = f"tridal.{name} needs torch, and importing that fails; see `tridal doctor`"
            raise ImportError(message) from _torch_error
        import importlib

        return importlib.import_module(f"tridal.{name}")
