"""tridal: one fused softmax source for every device that Triton compiles to. These are the public names."""

from tridal import errors, registry, settings, types
from tridal.devices.settings import use

try:
    import torch as _torch  # noqa: F401
except Exception as error:  # whatever a broken torch raises: `tridal doctor`, which lives here, has to run and say so
    _broken = error

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ImportError(f"tridal.{name} needs torch, and importing that fails; see `tridal doctor`") from _broken
else:
    from tridal.ops.planning import plan
    from tridal.pytorch import nn
    from tridal.pytorch.devices import backends, device
    from tridal.pytorch.functions import log_softmax, softmax
    from tridal.pytorch.override import override_torch, start_from_environment

    start_from_environment()

__all__ = ["backends", "device", "errors", "log_softmax", "nn", "override_torch", "plan", "softmax", "use"]
__version__ = "0.1.0"
