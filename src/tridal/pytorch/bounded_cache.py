"""A dict of bounded size, for caches whose keys depend on the tensors of a program."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value]):
    """A dict that drops all items when it has `capacity` of them and gets another one."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def __setitem__(self, key: Key, value: Value) -> None:
        if len(self) >= self.capacity and key not in self:
            self.clear()
        super().__setitem__(key, value)
