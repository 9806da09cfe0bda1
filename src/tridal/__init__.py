"""tridal: one fused softmax source for every device that Triton compiles to. These are the public names."""

from tridal import errors
from tridal.devices import backends, device
from tridal.planning import plan
from tridal.settings import use
from tridal.softmax import log_softmax, softmax

__all__ = ["backends", "device", "errors", "log_softmax", "plan", "softmax", "use"]
__version__ = "0.1.0"
