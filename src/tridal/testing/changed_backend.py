"""A backend with some members of its own. The others are those of another backend."""

from __future__ import annotations

from typing import Any, cast

from tridal.devices.types import Backend


def with_members(backend: Backend, **members: Any) -> Backend:
    """A copy of a backend in which these members are replaced."""
    return cast(Backend, _Changed(backend, members))


class _Changed:
    def __init__(self, backend: Backend, members: dict[str, Any]) -> None:
        self._backend = backend
        vars(self).update(members)

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)
