"""Wrong arguments of the functions: one check for each kind of message, with torch's type of error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal
from tridal.errors import DimensionError, DTypeError, LayoutError, ShapeError, TensorDeviceError

X, W, TARGET = torch.randn(4, 8), torch.ones(8), torch.arange(4)
HEADS, FACTOR = torch.ones(2, 3, 5, 4), torch.ones(5, 4)
META = torch.ones(8, device="meta")
SOFTMAX: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dim": 2}, DimensionError, r"dim must be from -2 to 1 for input of shape \(4, 8\), got 2"),
    ({"dim": 1.0}, TypeError, "dim must be an int, got 1.0"),
    ({"dtype": torch.int32}, DTypeError, "dtype must be a floating-point torch.dtype or None, got torch.int32"),
    ({"input": TARGET}, DTypeError, "got torch.int64: pass dtype=, for example dtype="),
    ({"input": X.cfloat()}, DTypeError, "input must have a floating-point dtype, got torch.complex64"),
    ({"input": X.to_sparse()}, LayoutError, r"use input.to_dense\(\) or torch\.sparse\.(log_)?softmax"),
    ({"input": X.to_sparse_csr()}, LayoutError, "input must be a dense tensor, got the layout torch.sparse_csr"),
    ({"input": [1.0, 2.0]}, TypeError, "input must be a torch.Tensor, got list"),
]
SCALED = [
    ({"mask": [True]}, TypeError, "mask must be a torch.Tensor or None, got list"),
    ({"mask": torch.ones(8, dtype=torch.int64)}, DTypeError, "mask must have a boolean dtype .*, got torch.int64"),
    ({"mask": torch.ones(3)}, ShapeError, r"mask must have .* broadcast to \(4, 8\), .* got \(3,\)"),
    ({"scale": "big"}, TypeError, "scale must be a number, got 'big'"),
    ({"causal": True, "dim": 0}, DimensionError, "dim must be -1 of at least two dims, queries by keys, with causal"),
    ({"causal": True, "input": X[0]}, DimensionError, "dim must be -1 of at least two dims"),
    ({"masked_rows": "one"}, ValueError, "masked_rows must be 'nan' or 'zero', got 'one'"),
]
NORM = [
    ({"normalized_shape": 8}, TypeError, r"must be a tuple of ints, got 8: pass \(8,\)"),
    ({"normalized_shape": (8.0,)}, TypeError, "each size of normalized_shape must be an int, got 8.0"),
    ({"normalized_shape": ()}, ShapeError, r"must be the last sizes \(at least one\) of input"),
    ({"normalized_shape": (7,)}, ShapeError, r"must be the last sizes .* the shape \(4, 8\), got \(7,\)"),
    ({"weight": torch.ones(1, 8)}, ShapeError, r"weight must have the shape \(8,\), got \(1, 8\): a number per column"),
    ({"eps": "a"}, TypeError, "eps must be a number, got 'a'"),
]
OF_TRIDAL = [
    ({"residual": W}, ShapeError, r"residual must have the shape \(4, 8\), got \(8,\)"),
    ({"input": X.int(), "residual": X}, DTypeError, "input must have the dtype float16"),
    ({"casting": "bf16"}, ValueError, "casting must be None, 'llama' or 'gemma', got 'bf16'"),
]
ENTROPY = [
    ({"reduction": "avg"}, ValueError, "reduction must be 'none', 'mean' or 'sum', got 'avg'"),
    ({"label_smoothing": 1.5}, RuntimeError, "label_smoothing must be a number from 0 to 1, got 1.5"),
    ({"ignore_index": 1.5}, TypeError, "ignore_index must be an int"),
    ({"weight": torch.rand(4)}, RuntimeError, r"weight must have the shape \(8,\), got \(4,\): a number per class"),
    ({"weight": W.double()}, RuntimeError, "weight must have the dtype torch.float32 of the logits"),
    ({"target": torch.tensor([0, 8, 1, 2])}, IndexError, "target must hold classes from 0 to 7, got 8"),
    ({"target": TARGET.int()}, RuntimeError, "target must have the dtype torch.int64 or torch.uint8"),
    ({"target": TARGET[:3]}, ValueError, r"target must have the shape \(4,\) for indices"),
    ({"target": TARGET.repeat(8, 1).t()}, RuntimeError, "target must have a floating-point dtype"),
    ({"target": torch.rand(4, 8), "ignore_index": 1}, RuntimeError, "ignore_index must be negative or absent"),
]
GLU = [
    (
        {"input": X[:, :3], "up": None},
        ShapeError,
        r"input must have a last dim of even size .*, got the shape \(4, 3\)",
    ),
    ({"up": X[0]}, ShapeError, r"up must have the shape \(4, 8\), got \(8,\): a number per element"),
    ({"up": X.to("meta")}, TensorDeviceError, "up must be on .*, as input is, got meta"),
    ({"approximate": "erf"}, ValueError, "approximate must be 'none' or 'tanh', got 'erf'"),
]
ROTARY = [
    ({"sin": None}, TypeError, "sin must be a torch.Tensor, got NoneType"),
    ({"key": HEADS.int()}, DTypeError, "key must have a floating-point dtype, got torch.int32"),
    ({"key": HEADS[..., :3]}, ShapeError, r"key must have four dims, .* even size, got the shape \(2, 3, 5, 3\)"),
    ({"cos": FACTOR[:4]}, ShapeError, r"cos must have the shape \(2, 5, 4\), \(1, 5, 4\) or \(5, 4\) with query of"),
    ({"unsqueeze_dim": 3}, ValueError, "unsqueeze_dim must be 1 or 2, got 3"),
    ({"rotary_dim": 3}, ValueError, "rotary_dim must be None, or an even number from 2 to .* 4, got 3"),
    ({"rotary_dim": 2}, ShapeError, r"cos must have the shape .*\(5, 2\), .*or \(5, 1\) with query"),
    ({"key": HEADS[0]}, ShapeError, r"key must have 4 dims, as query has, got the shape \(3, 5, 4\)"),
    ({"interleaved": 1}, TypeError, "interleaved must be a bool, got 1"),
]
QK_NORM = [
    ({"query_weight": "w"}, TypeError, "query_weight must be a torch.Tensor or None, got str"),
    ({"query_weight": W}, ShapeError, r"query_weight must have the shape \(4,\), got \(8,\)"),
    ({"key_weight": TARGET}, DTypeError, "key_weight must have a floating-point dtype, got torch.int64"),
    ({"key": HEADS.repeat(1, 1, 1, 2)}, ShapeError, r"key must have the last size of query, 4, got .* \(2, 3, 5, 8\)"),
    ({"query": HEADS[0, 0, 0]}, ShapeError, r"query must have four dims, .* got the shape \(4,\)"),
    ({"cos": FACTOR[:, :1]}, ShapeError, r"cos must have the shape .*\(5, 4\), .*or \(5, 2\) with query"),
    ({"eps": "a"}, TypeError, "eps must be a number, got 'a'"),
    ({"weight_offset": None}, TypeError, "weight_offset must be a number, got None"),
    ({"unsqueeze_dim": 0}, ValueError, "unsqueeze_dim must be 1 or 2, got 0"),
]
TOKENS = [
    ({"mask": TARGET}, DTypeError, r"mask must have the dtype torch.bool, got torch.int64: use mask.bool\(\)"),
    ({"mask": TARGET[:3] > 1}, ShapeError, r"mask must have the shape \(4,\), got \(3,\): a bool per row of"),
    ({"ids": TARGET}, ShapeError, r"ids must have the shape \(4, 'K'\), got \(4,\)"),
    ({"ids": X}, DTypeError, r"ids must have the dtype torch.int64 or torch.uint8, got torch.float32"),
    ({"ids": torch.tensor([[0], [1], [8], [3]])}, IndexError, "ids must hold classes from 0 to 7, got 8"),
    ({"teacher_log_probs": X}, ValueError, "teacher_log_probs must be None without ids, got a tensor"),
    ({"ids": TARGET[:, None], "teacher_log_probs": X}, ShapeError, r"teacher_log_probs must have the shape \(4, 1\)"),
]
SWIGLU = [({"limit": 0.0}, ValueError, "limit must be None or a positive number, got 0.0")]
LAYER = {"linear_weight": torch.eye(8), "target": TARGET}
CALLS: dict[str, tuple[dict[str, Any], list[Any], bool]] = {
    "softmax": ({"dim": -1}, SOFTMAX, True),
    "log_softmax": ({"dim": -1}, SOFTMAX, True),
    "softmax of scores": ({}, SCALED, False),
    "rms_norm": ({"normalized_shape": (8,)}, NORM, True),
    "layer_norm": ({"normalized_shape": (8,)}, NORM, True),
    "rms_norm of tridal": ({"normalized_shape": (8,)}, OF_TRIDAL, False),
    "cross_entropy": ({"target": TARGET}, ENTROPY, True),
    "linear_cross_entropy": (LAYER, ENTROPY, False),
    "log_probs": ({"target": TARGET, "logits": X, "input": None}, TOKENS, False),
    "token_log_probs": (LAYER, TOKENS, False),
    "geglu": ({"up": X}, GLU, False),
    "swiglu": ({"up": X}, SWIGLU, False),
    "rotary_embedding": ({"query": HEADS, "key": HEADS, "cos": FACTOR, "sin": FACTOR, "input": None}, ROTARY, False),
    "qk_norm_rotary": (
        {
            "query": HEADS,
            "key": HEADS,
            "query_weight": W[:4],
            "key_weight": W[:4],
            "cos": FACTOR,
            "sin": FACTOR,
            "input": None,
        },
        QK_NORM,
        False,
    ),
}
"""The arguments of a correct call besides the input, the wrong ones, and whether torch has the function."""
WRONG = [(name, *row) for name, (_, rows, _) in CALLS.items() for row in rows]


@pytest.mark.parametrize(
    ("served", "name", "wrong", "error", "message"),
    [pytest.param(i % 3 > 0, *w, id=f"{w[0]} {w[3]}") for i, w in enumerate(WRONG)],
)
def test_errors_name_the_argument_and_have_torchs_types(
    device: torch.device, served: bool, name: str, wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    if device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    correct, _, is_torchs = CALLS[name]
    given = {key: value for key, value in ({"input": X} | correct | wrong).items() if value is not None or key in wrong}
    op = name.split()[0]
    with (
        tridal.use(device=None if served else "auto"),
        pytest.raises(error, match=f"{op.removeprefix('linear_')}: .*{message}"),
    ):
        getattr(tridal, op)(**given)
    if is_torchs:
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            getattr(torch if hasattr(torch, op) else torch.nn.functional, op)(**given)
        assert issubclass(error, theirs.type)
