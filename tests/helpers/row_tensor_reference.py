"""Tensors for the kernels of `row_tensors.py` and `three_statistics.py`, and their results in float64."""

from __future__ import annotations

from typing import Any

import torch

import row_tensors
import three_statistics
from tridal.kernels.row_kernel import RowKernel

EPS = 1e-5


def expected(kernel: RowKernel, tensors: dict[str, torch.Tensor], dim: int) -> list[torch.Tensor]:
    """The written tensors, in float64: those with a number per element first."""
    wide = {name: tensor.double() for name, tensor in tensors.items() if name != "target"}
    if "target" in tensors:
        x, target = wide["x"], tensors["target"]
        if kernel is row_tensors.CROSS_ENTROPY:
            lse = x.logsumexp(dim, keepdim=True)
            return [lse - x.gather(dim, target), lse]
        one_hot = torch.zeros_like(x).scatter(dim, target, 1)
        return [((x - wide["lse"]).exp() - one_hot) * wide["dy"]]
    if kernel in (row_tensors.LAYER_NORM, row_tensors.MOMENTS):
        x = wide["x"]
        mean, variance = x.mean(dim, keepdim=True), x.var(dim, correction=0, keepdim=True)
        inverse = 1 / (variance + EPS).sqrt()
        elements = [(x - mean) * inverse * wide["weight"] + wide["bias"] for _ in kernel.writes]
        return [*elements, mean, inverse]
    if kernel is row_tensors.RMS_NORM:
        total = wide["x"] + wide["residual"]
        inverse = 1 / (total.square().mean(dim, keepdim=True) + EPS).sqrt()
        return [total * inverse * wide["weight"], total, inverse]
    rows = [axis for axis in range(len(wide["x"].shape)) if axis != dim]
    if kernel is three_statistics.THREE:
        x, y, z, a, b, c = (wide[name] for name in "xyzabc")
        mixed = x * a + y - z
        deviation, largest = mixed - mixed.mean(dim, keepdim=True), (z * c).abs().amax(dim, keepdim=True)
        inverse = 1 / (mixed.var(dim, correction=0, keepdim=True) + EPS).sqrt()
        written = [deviation * inverse * 0.5 + b, y * largest + 2.0, x * y, largest, inverse]
        return [*written, mixed.mean(dim, keepdim=True), *(term.sum(rows) for term in (x, x * y, z))]
    dy, x = wide["dy"] * wide["weight"], wide["x"]
    inverse, deviation = wide["inverse"], x - wide["mean"]
    projection = deviation * inverse.square() * (dy * deviation).mean(dim, keepdim=True)
    gradient = (dy - dy.mean(dim, keepdim=True) - projection) * inverse
    return [gradient, (wide["dy"] * deviation * inverse).sum(rows), wide["dy"].sum(rows)]


def make(kernel: RowKernel, shape: tuple[int, ...], dim: int, offset: int, device: torch.device) -> dict[str, Any]:
    """Random tensors for what a kernel reads. Those with a number per column can be broadcast to the shape."""
    row, column = [1 if axis == dim else size for axis, size in enumerate(shape)], [1] * len(shape)
    column[dim] = shape[dim]
    tensors = {}
    for index, name in enumerate(kernel.reads):
        memory = torch.randn(offset + torch.Size(shape).numel(), device=device)
        tensors[name] = memory[(0 if index else offset) :][: torch.Size(shape).numel()].view(shape)
    tensors |= {name: torch.rand(row, device=device) + 0.5 for name in kernel.row_reads}
    if kernel.row_index is not None:
        tensors[kernel.row_index] = torch.randint(shape[dim], row, device=device)
    return tensors | {name: torch.randn(column, device=device) for name in kernel.column_reads}


def dtypes(kernel: RowKernel, element: str = "float32") -> tuple[str, ...]:
    """The dtypes of a kernel's tensors: those with a number per row or per column are float32, and indices int64."""
    known = {f"{kernel.row_index}_ptr": "int64", **dict.fromkeys(kernel.element_pointers, element)}
    return tuple(known.get(pointer, "float32") for pointer in kernel.pointers)
