"""Triton's interpreter computes the attributes of a type once per launch, instead of once per operation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def remembered_types(core: Any, interpreter: Any) -> Iterator[None]:
    """Context manager for one launch, in which equal types and their values share what is derived from a type.

    Triton's interpreter makes a type and a value in each operation. A quarter of a launch was spent on their shapes,
    names and numbers of elements. `core` is triton.language.core, `interpreter` is triton.runtime.interpreter.
    """
    make_block, make_tensor = core.block_type.__init__, core.tensor.__init__
    find_dtype: Any = getattr(interpreter, "_get_np_dtype", None)
    blocks: dict[Any, dict[str, Any]] = {}  # their attributes keep the objects alive whose ids are in the keys
    tensors: dict[Any, dict[str, Any]] = {}
    dtypes: dict[int, tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        attributes = blocks.get((id(element_ty), sizes))
        if attributes is None:
            make_block(self, element_ty, shape)
            blocks[id(element_ty), sizes] = dict(vars(self))
        else:
            self.__dict__.update(attributes)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = id(type.scalar), id(type.__dict__.get("shape"))
        attributes = tensors.get(key)
        if attributes is None:
            make_tensor(self, handle, type)
            tensors[key] = dict(vars(self))
        else:
            self.__dict__.update(attributes)
            self.handle = handle

    def dtype(tt_dtype: Any) -> Any:
        element = tt_dtype.scalar
        if id(element) not in dtypes:
            dtypes[id(element)] = find_dtype(tt_dtype), element
        return dtypes[id(element)][0]

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    if find_dtype is not None:
        interpreter._get_np_dtype = dtype
    try:
        yield
    finally:
        core.block_type.__init__, core.tensor.__init__ = make_block, make_tensor
        if find_dtype is not None:
            interpreter._get_np_dtype = find_dtype
