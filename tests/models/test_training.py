"""Five training steps of this year's families with and without kernelize, in float32 and bfloat16: losses and reports.

The vectors of a model, which are mostly weights of norms, have a larger learning rate than its matrices. So the losses
depend on their gradients by more than the roundings of the dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from extras import of_trainers
from model_families import family
from model_helpers import batch

STEPS, RATE, RATE_OF_VECTORS = 5, 3e-3, 0.1
DTYPES = (torch.float32, torch.bfloat16)
EPS = {torch.float32: 16, torch.bfloat16: 1}
"""The largest relative difference of the losses of a step, in units of the dtype's eps: 2e-6 and 8e-3.

If each weight changes by 1 eps, losses of these models change by up to 5 eps in float32. In bfloat16, they change by up
to 0.9 eps, because the loss itself is computed in float32 from the errors of many elements.
"""
LEFT: dict[str, dict[str, str]] = {
    "Qwen3Next": {}, "Qwen3_5Text": {}, "Gemma3Text": {}, "Gemma4Text": {}, "DeepseekV3": {}, "Glm4": {}, "Glm4Moe": {},
    "DeepseekV4": {**dict.fromkeys(("DeepseekV4Attention", "DeepseekV4HCACompressor"), "it does not rotate the first"),
                   "DeepseekV4HashRouter": "it has the tensors tid2eid"},
    "Llama4Text": {"Llama4TextAttention": "(xq, xk, freqs_cis)", "Llama4TextExperts": "the method _apply_gate",
                   "Llama4Router": "it does not return logits, weights and indices"},
    "ModernBert": {"ModernBertForMaskedLM": "its loss_function is ForMaskedLMLoss"},
    "DiT": {}, "SD3": {}, "Flux": {},
}  # fmt: skip
"""For each family, the classes that are left unchanged, and a part of the reason."""
BY_DAY = [("Qwen3Next", torch.float32), ("Llama4Text", torch.bfloat16)]
AT_NIGHT = pytest.mark.nightly("these tests of two families, and those of each kind of module")
OPS = {
    "DiT": {"modulated_layer_norm", "layer_norm"}, "SD3": {"modulated_layer_norm", "rms_norm"},
    "Flux": {"modulated_layer_norm", "rms_norm", "rotary_embedding"},
}  # fmt: skip
"""For families of diffusers, the ops that a backend computes."""
DIFFUSION = tuple(OPS)
FAMILIES = pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if (name, dtype) in BY_DAY else AT_NIGHT, id=f"{name}-{str(dtype)[6:]}")
        for name in LEFT
        for dtype in DTYPES
    ],
)
Model = tuple[Any, Callable[[Any], torch.Tensor]]
"""A model, and a function that computes its loss."""


def language_model(name: str) -> Model:
    return family(name), lambda model: model(**batch(model.device)).loss


def diffusion_model(name: str) -> Model:
    """A transformer that predicts the noise in an image. Its loss is the mean squared error."""
    diffusers = of_trainers("diffusers")
    image, text = torch.randn(2, 4, 8, 8), {"encoder_hidden_states": torch.randn(2, 5, 16)}
    heads = {"num_attention_heads": 2, "in_channels": 4}
    inputs: dict[str, Any] = {"hidden_states": image, "timestep": torch.tensor([3, 7])}
    if name == "DiT":
        model = diffusers.DiTTransformer2DModel(
            **heads, attention_head_dim=8, num_layers=2, sample_size=8, num_embeds_ada_norm=10, norm_num_groups=4
        )
        inputs["class_labels"] = torch.tensor([1, 4])
    elif name == "SD3":
        model = diffusers.SD3Transformer2DModel(
            **heads, attention_head_dim=8, num_layers=2, sample_size=8, joint_attention_dim=16, out_channels=4,
            caption_projection_dim=16, pooled_projection_dim=16, pos_embed_max_size=8, qk_norm="rms_norm",
        )  # fmt: skip
        inputs |= {**text, "pooled_projections": torch.randn(2, 16)}
    else:
        model = diffusers.FluxTransformer2DModel(
            **heads, attention_head_dim=16, num_layers=1, num_single_layers=1, joint_attention_dim=16,
            pooled_projection_dim=24, axes_dims_rope=(4, 4, 8),
        )  # fmt: skip
        inputs |= {**text, "pooled_projections": torch.randn(2, 24), "timestep": torch.tensor([0.3, 0.7])}
        inputs |= {"hidden_states": image.flatten(2).mT, "img_ids": torch.rand(64, 3), "txt_ids": torch.zeros(5, 3)}
    noise = torch.randn(inputs["hidden_states"].shape)

    def loss(model: Any) -> torch.Tensor:
        given = {
            key: value.to(model.device, model.dtype if key in FLOATS else None)  # ids and times have their own dtype
            for key, value in inputs.items()
        }
        predicted = model(**given).sample[:, : noise.shape[1]].float()  # DiT also predicts a variance
        return torch.nn.functional.mse_loss(predicted, noise.to(model.device))

    return model, loss


FLOATS = ("hidden_states", "encoder_hidden_states", "pooled_projections")


def build(name: str, device: torch.device, dtype: torch.dtype) -> Model:
    """Returns a model in training mode, whose vectors are random."""
    torch.manual_seed(0)
    model, loss = (diffusion_model if name in DIFFUSION else language_model)(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) / 8)
    return model.to(device, dtype).train(), loss


def losses(model: Any, loss_of: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """Trains, and returns the losses of all steps."""
    torch.manual_seed(1)  # for dropout
    vectors, matrices = ([p for p in model.parameters() if (p.dim() < 2) is small] for small in (True, False))
    groups = [{"params": vectors, "lr": RATE_OF_VECTORS}, {"params": matrices, "lr": RATE}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.9))
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        found.append(loss.detach().double())
    return torch.stack(found)


def difference(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> float:
    """Returns the largest relative difference of two losses of the same step, in units of the tolerance."""
    return float(((found - expected) / expected).abs().max()) / (EPS[dtype] * torch.finfo(dtype).eps)


@FAMILIES
def test_losses_of_five_steps_are_those_of_the_unchanged_model(
    device: torch.device, name: str, dtype: torch.dtype, record_property: Any
) -> None:
    """In float32 with the fused loss. The report and the difference are properties of the test, see --junitxml."""
    model, loss = build(name, device, dtype)
    expected = losses(copy.deepcopy(model), loss)
    report = tridal.kernelize(model, fused_loss=dtype is torch.float32)
    with tridal.record_calls() as calls:
        found = losses(model, loss)
    record_property("difference", f"{difference(found, expected, dtype):.2f} of the tolerance\n{report}")
    assert expected[-1] < 0.95 * expected[0]
    assert difference(found, expected, dtype) < 1, f"{found} instead of {expected}"
    assert len(report.replaced) >= 4
    ops = {call.op for call in calls if call.backend != "torch"}
    assert OPS.get(name, set()) | {f"{op}_backward" for op in OPS.get(name, ())} <= ops
    assert {entry.class_name for entry in report.unchanged} == set(LEFT[name])
    for entry in report.unchanged:
        assert LEFT[name][entry.class_name] in str(entry.reason)


@FAMILIES
def test_losses_of_five_steps_show_lost_gradients(name: str, dtype: torch.dtype) -> None:
    """The tolerance finds norms without gradients, and in float32 the lost gradient of each weight."""
    model, loss = build(name, torch.device("cpu"), dtype)
    expected = losses(copy.deepcopy(model), loss)
    loss(model).backward()
    norms = [key for key, module in model.named_modules() if "Norm" in type(module).__name__ and not module._modules]
    weights = [
        key for key in norms if any(p.grad is not None and p.grad.any() for p in model.get_submodule(key).parameters())
    ]

    def change_without(parameters: list[str], outputs: list[str]) -> float:
        changed = copy.deepcopy(model)
        for key in parameters:
            changed.get_submodule(key).requires_grad_(False)
        for key in outputs:
            changed.get_submodule(key).register_forward_hook(lambda _module, _inputs, output: output.detach())
        return difference(losses(changed, loss), expected, dtype)

    assert change_without(weights, norms) > 2
    if weights and (dtype is torch.float32 or name not in DIFFUSION):  # norms of heads change the latter by 3e-3
        assert change_without(weights, []) > 2
    if dtype is torch.float32:
        assert {key for key in weights if change_without([key], []) < 1} == set()
