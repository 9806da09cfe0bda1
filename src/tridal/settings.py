"""`tridal.settings`: public functions that read and change settings."""

from tridal.devices.settings import Settings, config_file, current, read_file, reload, use

__all__ = ["Settings", "config_file", "current", "read_file", "reload", "use"]
__dir__ = __all__.copy
