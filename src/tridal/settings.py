"""Settings and where their values came from, under the documented name `tridal.settings`."""

from tridal.devices.settings import Settings, config_file, current, read_file, reload, use

__all__ = ["Settings", "config_file", "current", "read_file", "reload", "use"]
