"""Backends by name, under the documented name `tridal.registry`."""

from tridal.devices.registry import available, clear, get, register, registered, resolve, serving, unregister

__all__ = ["available", "clear", "get", "register", "registered", "resolve", "serving", "unregister"]
