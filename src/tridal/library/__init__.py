"""The bundled ops: each folder has the math, the declarations, the functions and the modules of a family of ops."""

from tridal.library.gated_norm.gated_rms_norm import GATED_RMS_NORM
from tridal.library.glu.glu import GEGLU, SWIGLU
from tridal.library.log_probs.log_probs import LOG_PROBS
from tridal.library.log_probs.token_log_probs import TOKEN_LOG_PROBS
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from tridal.library.modulated_norm.gated_residual import GATED_MODULATED_LAYER_NORM, GATED_MODULATED_RMS_NORM
from tridal.library.modulated_norm.modulated_norm import MODULATED_LAYER_NORM, MODULATED_RMS_NORM
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM
from tridal.library.qk_norm.qk_norm_rotary import QK_NORM_ROTARY
from tridal.library.rotary.rotary import ROTARY_EMBEDDING
from tridal.library.router.route_top_k import ROUTE_TOP_K
from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX

__all__ = [
    "CROSS_ENTROPY", "GATED_MODULATED_LAYER_NORM", "GATED_MODULATED_RMS_NORM", "GATED_RMS_NORM", "GEGLU", "LAYER_NORM",
    "LINEAR_CROSS_ENTROPY", "LOG_PROBS", "LOG_SOFTMAX", "MODULATED_LAYER_NORM", "MODULATED_RMS_NORM", "OPS",
    "QK_NORM_ROTARY", "RMS_NORM", "ROTARY_EMBEDDING", "ROUTE_TOP_K", "SOFTMAX", "SWIGLU", "TOKEN_LOG_PROBS",
]  # fmt: skip
__dir__ = __all__.copy

OPS = (
    SOFTMAX, LOG_SOFTMAX, RMS_NORM, LAYER_NORM, CROSS_ENTROPY, LINEAR_CROSS_ENTROPY, SWIGLU, GEGLU, LOG_PROBS,
    TOKEN_LOG_PROBS, ROTARY_EMBEDDING, GATED_RMS_NORM, MODULATED_LAYER_NORM, MODULATED_RMS_NORM,
    GATED_MODULATED_LAYER_NORM, GATED_MODULATED_RMS_NORM, ROUTE_TOP_K, QK_NORM_ROTARY,
)  # fmt: skip
