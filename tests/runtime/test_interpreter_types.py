"""Types and values that share their attributes in a launch are equal to those that Triton makes otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from tridal.runtime.compiler import import_triton
from tridal.runtime.interpreter_types import remembered_types

pytest.importorskip("triton")
triton = import_triton()
tl = triton.language
from triton.runtime import interpreter  # noqa: E402

SHAPES = [[4], [8], [2, 4], [4, 2], [1, 8], [tl.constexpr(4), tl.constexpr(2)]]
SCALARS = [tl.int1, tl.int32, tl.uint32, tl.float32, tl.bfloat16, tl.pointer_type(tl.float32)]


def attributes(value: Any) -> dict[str, str]:
    return {name: str(attribute) for name, attribute in vars(value).items()}


def made() -> list[Any]:
    """The attributes of types and values, which are made twice, and the dtypes of their elements."""
    types = [*SCALARS, *(tl.block_type(scalar, shape) for shape in SHAPES for scalar in SCALARS)]
    found: list[Any] = [attributes(kind) for kind in types[len(SCALARS) :]]
    for handle in (1.0, 2.0):
        found += [attributes(tl.tensor(handle, kind)) for kind in types]
    found += [interpreter._get_np_dtype(kind) for kind in types]
    return found


def test_attributes_are_those_of_triton() -> None:
    expected = made()
    with remembered_types(tl.core, interpreter):
        assert made() == expected
        assert made() == expected, "of types that are known"
        values = [tl.tensor(handle, tl.block_type(tl.float32, [4])) for handle in (1, 2)]
        assert [value.handle for value in values] == [1, 2]


def test_types_that_triton_forbids_are_errors_each_time() -> None:
    with remembered_types(tl.core, interpreter):
        for _ in range(2):
            with pytest.raises(TypeError, match="0d block_type is forbidden"):
                tl.block_type(tl.float32, [])
            with pytest.raises(ValueError, match="power of 2"):
                tl.block_type(tl.float32, [3])


def assert_remembered(before: tuple[Any, ...]) -> None:
    """Makes a type that Triton forbids, after it has checked that Triton is changed."""
    assert tl.core.block_type.__init__ is not before[0]
    tl.block_type(tl.float32, [])


def test_triton_is_restored_after_an_error() -> None:
    before = tl.core.block_type.__init__, tl.core.tensor.__init__, interpreter._get_np_dtype
    with pytest.raises(TypeError), remembered_types(tl.core, interpreter):
        assert_remembered(before)
    assert (tl.core.block_type.__init__, tl.core.tensor.__init__, interpreter._get_np_dtype) == before


def test_types_are_remembered_without_the_private_function_of_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(interpreter, "_get_np_dtype")
    with remembered_types(tl.core, interpreter):
        assert tl.block_type(tl.float32, [4]).numel == 4
    assert not hasattr(interpreter, "_get_np_dtype")
