"""`tridal.registry`: public functions that register and look up backends."""

from tridal.devices.registry import available, clear, get, register, registered, resolve, serving, unregister

__all__ = ["available", "clear", "get", "register", "registered", "resolve", "serving", "unregister"]
__dir__ = __all__.copy
