"""The problems of the table of CUDA plans: measured shapes, both sides of limits, and plans that spilled."""

from __future__ import annotations

from golden_plans import Question

_FORWARD, _BACKWARD = ("softmax",), ("softmax_backward",)
_BOTH = _FORWARD + _BACKWARD


def _questions(ops: tuple[str, ...], dtypes: str, *shapes: tuple[int, ...], dim: int = -1) -> list[Question]:
    """One problem per op, dtype and shape, for the first architecture."""
    return [Question("", op, dtype, shape, dim) for op in ops for dtype in dtypes.split() for shape in shapes]


_MEASURED = [  # shapes of `tridal bench --suite`
    *_questions(_FORWARD, "float32", (2_097_152, 32), (262_144, 256), (65_536, 1024), (8192, 8192), (5295, 12_672)),
    *_questions(_FORWARD, "float32", (2048, 32_768), (4096, 65_536), (256, 1_048_576), (4096, 1536), (13_412, 10_007)),
    *_questions(_FORWARD, "bfloat16", (1_048_576, 64), (58_254, 1152), (16_384, 4096), (8192, 8192), (5295, 12_672)),
    *_questions(_FORWARD, "bfloat16", (4096, 16_384), (2048, 32_768), (4096, 65_536), (2048, 131_072), (512, 524_288)),
    *_questions(_FORWARD, "bfloat16", (1_342_177, 100), (522_247, 257), (171_853, 781), (13_412, 10_007)),
    *_questions(_FORWARD, "bfloat16", (2670, 50_257), (883, 151_935), (512, 32_768), (128, 128_256)),
    *_questions(_FORWARD, "float16", (524_288, 128), (32_768, 2048), (4096, 512)),
    *_questions(_BACKWARD, "float32", (65_536, 1024), (4096, 16_384), (883, 151_935), (171_853, 781), (8, 128_256)),
    *_questions(_BACKWARD, "bfloat16", (262_144, 256), (5295, 12_672), (4096, 16_384), (1024, 262_144)),
    *_questions(_BACKWARD, "bfloat16", (13_412, 10_007), (2670, 50_257), (32, 128_256), (512, 32_768)),
    *_questions(_FORWARD, "float32 bfloat16", (1, 32_768), (8, 128_256), (1, 262_144)),
    *_questions(_BOTH, "float32 bfloat16", (64, 4096, 256), dim=1),
    *_questions(_BOTH, "bfloat16", (256, 256, 1024), dim=1),
    *_questions(_BOTH, "float32", (32, 1000, 1001), dim=1),
    *_questions(_BOTH, "float32 bfloat16", (512, 512, 512), dim=0),
    *_questions(_BOTH, "bfloat16", (4096, 16_384), (50_257, 512), dim=0),
    *_questions(_FORWARD, "float32", (50_257, 512), dim=0),
]
_OTHER = [  # both sides of a limit, and plans that would spill
    *_questions(_FORWARD, "float32", (1_000_000, 13), (1_000_000, 17), (4096, 4095), (4096, 16_383), (512, 524_289)),
    *_questions(_FORWARD, "float32", (2, 1_000_000), (2, 2_000_000), (4096, 20_480)),
    *_questions(_FORWARD, "bfloat16", (600, 16_384), (8192, 14_336), (8192, 13_001), (4096, 24_576), (4096, 20_480)),
    *_questions(_FORWARD, "bfloat16", (16_384, 4095), (200, 10_000_000), (4096, 9216)),
    *_questions(("log_softmax",), "float16", (4096, 256), (1900, 70_001)),
    *_questions(_BACKWARD, "float32", (4096, 9000), (64, 5_000_000)),
    *_questions(_BACKWARD, "float16", (20_000, 10_007), (4096, 20_480), (128, 65_536)),
    *_questions(_FORWARD, "float64", (4096, 781), (4096, 100_000)),
    *_questions(_BACKWARD, "float64", (4096, 30_001)),
    *_questions(("log_softmax_backward",), "float64", (8, 115_887, 2), dim=1),
    *_questions(_FORWARD, "bfloat16", (64, 2_097_152), (32, 4_194_304), dim=0),
    *_questions(_BACKWARD, "bfloat16", (1024, 65_536), (1536, 100_000), dim=0),
    *_questions(_BACKWARD, "float32", (1536, 4096), (30_122, 4096), dim=0),
    *_questions(_BOTH, "float32 bfloat16", (32, 8192, 256), (16, 16_384, 256), dim=1),
    *_questions(_FORWARD, "bfloat16", (16_384, 512), (50_257, 48), dim=0),
    *_questions(_FORWARD, "float32", (4_194_305, 4), (849, 127), dim=0),
    *_questions(_BACKWARD, "float64", (16_385, 255), dim=0),
]
_NORMS = ("rms_norm_backward without dsum", "layer_norm_backward without dsum")
_SEVERAL_TENSORS = [
    *_questions(("rms_norm", "layer_norm"), "bfloat16", (131_072, 4096), (16_384, 32_768), (65_536, 781)),
    *_questions(_NORMS, "bfloat16", (1_048_576, 128), (524_288, 1024), (131_072, 4096), (65_536, 8192), (65_536, 781)),
    *_questions(_NORMS, "bfloat16", (16_384, 32_768), (1024, 262_144), (100, 4096), (2000, 512), (131_072, 16_384)),
    *_questions(_NORMS, "bfloat16", (2048, 65_536)),
    *_questions(_NORMS, "float32", (65_536, 4096), (4096, 16_384), (1024, 262_144)),
    *_questions(
        ("rms_norm_backward", "layer_norm_backward"),
        "bfloat16",
        (131_072, 4096),
        (65_536, 781),
        (4096, 16_384),
        (4_194_304, 32),
    ),
    *_questions(("cross_entropy",), "bfloat16", (8192, 128_256), (32_768, 1024), (4096, 50_257), (4096, 5000)),
    *_questions(("cross_entropy",), "bfloat16", (8192, 16_384), (300, 131_072), (200, 131_072), (32, 131_072)),
    *_questions(("cross_entropy_backward",), "bfloat16", (8192, 128_256), (32_768, 1024), (8192, 6000), (4096, 50_257)),
    *_questions(("cross_entropy", "cross_entropy_backward"), "float32", (2048, 151_936)),
    *_questions(("cross_entropy_with_gradient without weight",), "bfloat16", (4096, 128_256), (768, 50_264)),
]
_MEASURED += _SEVERAL_TENSORS
_ALL, _HALF = _MEASURED + _OTHER, _MEASURED[::2] + _OTHER
_VARIANTS = [
    *_questions(("layer_norm",), "bfloat16", (524_288, 256)),
    *_questions(("layer_norm without residual",), "bfloat16", (4096, 16_384), (16_384, 32_768), (2048, 131_072)),
    *_questions(("layer_norm without residual",), "bfloat16", (4096, 65_536)),
    *_questions(("rms_norm without residual",), "bfloat16", (131_072, 4097), (65_536, 8192), (4096, 65_536)),
    *_questions(("rms_norm without residual",), "float32", (65_536, 4096), (65_536, 8192)),
    *_questions(("column_sum",), "float32", (1056, 1024), dim=0),
    *_questions(("rms_norm_backward", "layer_norm_backward"), "float64", (4096, 8192)),
]
_FEW_SLOTS = _questions(("cross_entropy",), "bfloat16", (4096, 50_257))  # see `GpuProblem.few_slots`
_BY_ARCHITECTURE = {
    "sm_90": _ALL + _VARIANTS, "sm_80": _HALF, "sm_100": [*_HALF, *_FEW_SLOTS], "sm_120": _HALF,
}  # fmt: skip
QUESTIONS = [question._replace(arch=arch) for arch, chosen in _BY_ARCHITECTURE.items() for question in chosen]
