"""Whether the backward of cross-entropy may write the gradient into the logits."""

from __future__ import annotations

from typing import Any

import torch

from tridal.library.losses.layout import rows_last
from tridal.ops import wrong
from tridal.pytorch import records_gradient

Tensor = torch.Tensor


def check_inplace(op: str, input: Tensor) -> None:
    """Raises RuntimeError if the backward must not write into the logits."""
    if not records_gradient(input):
        return
    expected = "be False for a leaf that requires grad, because its values are needed again"
    if input.is_leaf or _is_view_of_leaf(input):
        raise RuntimeError(wrong(op, "inplace_backward", expected, True, "pass logits that an operation has computed"))
    if rows_last(input) is None:
        expected = f"be False for logits that are not contiguous (strides {input.stride()})"
        raise RuntimeError(wrong(op, "inplace_backward", expected, True, "use input.contiguous()"))


def _is_view_of_leaf(tensor: Tensor) -> bool:
    """Returns whether a leaf that requires grad has the memory of the tensor."""
    nodes: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set()
    memory = tensor.untyped_storage().data_ptr()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        following = [following for following, _ in node.next_functions if following is not None]
        leaves = [leaf for leaf in (getattr(each, "variable", None) for each in following) if leaf is not None]
        if any(leaf.untyped_storage().data_ptr() == memory for leaf in leaves):
            return True
        # The node of a view has one input. A node in Python, such as that of a module's hooks, may return more views.
        if len(following) == 1 or isinstance(node, torch.autograd.function.BackwardCFunction):
            nodes += following
    return False
