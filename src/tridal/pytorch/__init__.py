"""The integration with PyTorch: functions, modules, registered ops, autograd, torch.compile, DTensor, override.

An op with a public function of its own uses the names of this module, which `docs/add-an-op.md` explains.
"""

from tridal.pytorch.path.calls import PendingCall, call, call_prepared
from tridal.pytorch.path.checks import check, check_arguments, check_tensors
from tridal.pytorch.path.function import apply, register, row_function
from tridal.pytorch.path.nodes import has_values, records_gradient
from tridal.pytorch.path.row_calls import rules_of
from tridal.pytorch.path.rules import Rules
from tridal.pytorch.path.steps import Steps
from tridal.pytorch.path.streams import call_on_stream
from tridal.pytorch.path.support import record_torch_call, torch_computes
from tridal.pytorch.torch.distributed import is_distributed
from tridal.pytorch.torch.private import (
    autocast_enabled,
    autocasts,
    keeps_graph,
    saves_through_hooks,
    skip_frames,
    tracing_state,
    transforms_active,
    without_autocast,
)

__all__ = [
    "PendingCall", "Rules", "Steps", "apply", "autocast_enabled", "autocasts", "call", "call_on_stream",
    "call_prepared", "check", "check_arguments", "check_tensors", "has_values", "is_distributed", "keeps_graph",
    "record_torch_call", "records_gradient", "register", "row_function", "rules_of", "saves_through_hooks",
    "skip_frames", "torch_computes", "tracing_state", "transforms_active", "without_autocast",
]  # fmt: skip
__dir__ = __all__.copy
