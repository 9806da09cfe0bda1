"""The error for the declaration of an op of version 0.2, which shows the new one."""

from __future__ import annotations

from typing import Any, NoReturn

from tridal.errors import PluginError

_KERNELS = ("forward", "backward")
_FIELDS = ("name", *_KERNELS, "reference", "gradient", "saves", "parameters")


def RowOp(*arguments: Any, **fields: Any) -> NoReturn:
    """Raises PluginError, which shows the declaration of the same op as `Op`.

    Example:
        >>> tridal.ops.RowOp("square", parameters={"eps": 1e-6})
        Traceback (most recent call last):
        tridal.errors.PluginError: RowOp is now Op, ...number('eps', 1e-06)...
    """
    given = dict(zip(_FIELDS, arguments, strict=False)) | fields
    numbers = "".join(f"number({name!r}, {default!r}), " for name, default in given.pop("parameters", {}).items())
    name, saves = given.pop("name", "..."), given.pop("saves", "output")
    others = "".join(
        f", {key}={key if callable(value) else repr(value)}" for key, value in given.items() if key not in _KERNELS
    )
    raise PluginError(
        f"RowOp is now Op, which also declares ops of several tensors: write Op(name={name!r}, "
        f"arguments=(per_element('input'), {numbers.rstrip()}), "
        f"kernels=(forward, backward), saves=({saves!r},){others})"
    )
