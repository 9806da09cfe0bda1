"""What a backend is told of a call, and when: the alignment of its tensors, and numbers of rows of each kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tridal
from recording_backend import RecordingBackend, serving
from tridal.ops import planning

pytest.importorskip("triton")


@pytest.fixture
def recording() -> Iterator[RecordingBackend]:
    found = RecordingBackend()
    with serving(found):
        yield found


@pytest.mark.parametrize("start", [0, 1, 4, 8, 16])
def test_an_address_decides_the_alignment(recording: RecordingBackend, start: int) -> None:
    tridal.softmax(torch.randn(4 * 64 + start)[start:].view(4, 64))
    (problem,) = recording.problems
    assert problem.aligned is (start in (0, 4, 8, 16))


@pytest.mark.parametrize(("blocks", "aligned"), [(1072, True), (1088, True), (1064, False), (1060, False)])
def test_each_stride_decides_the_alignment(recording: RecordingBackend, blocks: int, aligned: bool) -> None:
    """The blocks of rows have two strides."""
    gate, up = (torch.randn(4096).as_strided((3, 2, 8, 32), (blocks, 528, 64, 1)) for _ in range(2))
    torch.testing.assert_close(tridal.swiglu(gate, up), torch.nn.functional.silu(gate) * up)
    (problem,) = recording.problems
    assert problem.aligned is aligned


@pytest.mark.parametrize(
    ("op", "blocks", "reads"),
    [
        ("rms_norm", None, ("x",)),
        ("rms_norm_backward", None, ("dy", "x")),
        ("gated_rms_norm", None, ("x", "gate")),
        ("modulated_layer_norm", 4, ("x",)),
    ],
)
def test_optional_tensors_per_element_are_absent(op: str, blocks: int | None, reads: tuple[str, ...]) -> None:
    kernel = planning.matrix_call(64, 96, op=op, blocks=blocks).kernel
    assert (kernel.reads, kernel.added) == (reads, None)
