"""The integration with PyTorch: functions, modules, registered ops, autograd, torch.compile, DTensor, override.

An op with a public function of its own uses the names of this module, which `docs/add-an-op.md` explains.
"""

from tridal.pytorch.device_context import record_torch_call
from tridal.pytorch.path.checks import check, check_arguments, check_tensors
from tridal.pytorch.path.dispatch import call_op, torch_computes
from tridal.pytorch.path.function import op_function, register
from tridal.pytorch.path.op_calls import call_of_op, compute_op, reference
from tridal.pytorch.path.row_functions import apply, row_function
from tridal.pytorch.path.state import has_values, records_gradient
from tridal.pytorch.path.steps import Steps
from tridal.pytorch.torch.distributed import is_distributed
from tridal.pytorch.torch.private import (
    autocast_enabled,
    autocasts,
    saves_through_hooks,
    skip_frames,
    tracing_state,
    transforms_active,
    without_autocast,
)

__all__ = [
    "Steps", "apply", "autocast_enabled", "autocasts", "call_of_op", "call_op", "check", "check_arguments",
    "check_tensors", "compute_op", "has_values", "is_distributed", "op_function", "record_torch_call",
    "records_gradient", "reference", "register", "row_function", "saves_through_hooks", "skip_frames",
    "torch_computes", "tracing_state", "transforms_active", "without_autocast",
]  # fmt: skip
__dir__ = __all__.copy
