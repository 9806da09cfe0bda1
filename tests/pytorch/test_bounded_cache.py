"""A bounded cache drops its items when it is full and gets another key."""

from __future__ import annotations

from tridal.pytorch.bounded_cache import BoundedCache


def test_another_key_in_a_full_cache_drops_all_others() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache["a"], cache["b"] = 1, 2
    cache["a"] = 3
    assert cache == {"a": 3, "b": 2}, "a known key drops nothing"
    cache["c"] = 4
    assert cache == {"c": 4}
