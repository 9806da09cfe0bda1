"""Measures training and decoding of transformers models: tokens per second and peak memory.

    python benchmarks/models.py [--models NAME...] [--providers NAME...] [--work NAME...] [--output FOLDER]

The models have random weights. A training step is a forward with labels and a backward, without an optimizer. Decoding
is greedy generation with a cache. The providers are: the unchanged model; `tridal.override_torch`; `tridal.kernelize`,
with and without `fused_loss=True`; Liger-Kernel's patch; torch.compile alone, and with kernelize. Each of them gets a
model with the same weights. If it is not installed, or fails, the reason is listed. The results are written to
models.json, training.png and decoding.png. Needs the packages transformers and matplotlib.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from model_plots import make_pictures
from model_results import Result, line

import tridal
from tridal.benchmarks.plot_style import save_png, style

STEPS = {"training": (3, 10), "decoding": (1, 4)}
"""Numbers of warm-up steps and of measured steps in a round."""
ROUNDS = {"training": 1, "decoding": 3}
"""The providers take turns in this many rounds. The host limits decoding, and the host's speed changes every minute."""
COMPILE_SECONDS = 40
"""A provider that compiles is started only if this time is left."""


@dataclass(frozen=True)
class Model:
    """A model, and the sizes of a training batch and of decoding."""

    make: Callable[[str], Any]
    """make(attention): a model with random weights."""
    batch: tuple[int, int]
    """Sequences and tokens of a training step."""
    prompt: tuple[int, int] = (8, 128)
    new_tokens: int = 32


def causal_lm(name: str, **sizes: Any) -> Callable[[str], Any]:
    """Returns a function that builds a causal language model of transformers with these sizes."""

    def make(attention: str) -> Any:
        config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation=attention)
        return transformers.AutoModelForCausalLM.from_config(config)

    return make


NO_DROPOUT = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
MODELS = {
    "llama": Model(
        causal_lm(
            "Llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=128_256, tie_word_embeddings=True,
        ),
        (4, 2048),
    ),
    "gemma": Model(
        causal_lm(
            "Gemma", hidden_size=2048, intermediate_size=16_384, num_hidden_layers=12, num_attention_heads=8,
            num_key_value_heads=1, head_dim=256, vocab_size=256_000, tie_word_embeddings=True,
        ),
        (2, 2048),
    ),
    "qwen3": Model(
        causal_lm(
            "Qwen3", hidden_size=2048, intermediate_size=6144, num_hidden_layers=14, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
        ),
        (4, 2048),
    ),
    "gpt2": Model(
        causal_lm("GPT2", n_embd=1024, n_layer=24, n_head=16, n_positions=2048, vocab_size=50_257, **NO_DROPOUT),
        (8, 1024),
    ),
}  # fmt: skip
TINY = {
    "llama": Model(
        causal_lm(
            "Llama", hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, vocab_size=97, bos_token_id=0, eos_token_id=1,
        ),
        (1, 16), (1, 4), 4,
    ),
}  # fmt: skip


@contextmanager
def liger(model: Any) -> Iterator[Any]:
    """Applies Liger-Kernel's patch of one model. It also changes functions of the model's file, which are restored."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise NotImplementedError(f"Liger-Kernel has no patch for {model.config.model_type}")
    namespace = vars(sys.modules[type(model).__module__])
    before = dict(namespace)
    try:
        _apply_liger_kernel_to_instance(model)
        yield model
    finally:
        namespace.update(before)


@contextmanager
def kernelized(model: Any, fused_loss: bool = False, compiled: bool = False) -> Iterator[Any]:
    """Applies tridal.kernelize, and compiles the model if asked to."""
    with tridal.kernelize(model, fused_loss=fused_loss):
        yield torch.compile(model) if compiled else model


@contextmanager
def overridden(model: Any) -> Iterator[Any]:
    """Overrides torch's kernels."""
    with tridal.override_torch():
        yield model


PROVIDERS: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "unchanged": nullcontext,
    "override_torch": overridden,
    "kernelize": kernelized,
    "kernelize+fused_loss": lambda model: kernelized(model, fused_loss=True),
    "liger": liger,
    "compile": lambda model: nullcontext(torch.compile(model)),
    "compile+kernelize": lambda model: kernelized(model, compiled=True),
    "compile+kernelize+fused_loss": lambda model: kernelized(model, fused_loss=True, compiled=True),
}


class Bench:
    """Measures providers on one device until the time is used up."""

    def __init__(
        self, models: dict[str, Model], device: torch.device, attention: str, work: list[str], seconds: float
    ) -> None:
        self.models, self.device, self.attention, self.work = models, device, attention, work
        self.end = time.monotonic() + seconds
        self.on_cpu = device.type == "cpu"
        self.memory = None if self.on_cpu else torch.get_device_module(device)

    def measure(self, name: str, providers: list[str]) -> list[Result]:
        """Measures training and decoding with providers. Decoding has no loss, so a fused loss does not change it."""
        measured = []
        for work in self.work:
            results = [Result(name, work, p) for p in providers if work == "training" or "fused_loss" not in p]
            for _ in range(ROUNDS[work]):
                for result in results:
                    if result.problem is None:
                        self._measure_round(result)
            for result in results:
                print(line(result), flush=True)
            measured += results
        return measured

    def _measure_round(self, result: Result) -> None:
        compiles = "compile" in result.provider
        if time.monotonic() + COMPILE_SECONDS * compiles > self.end or (compiles and result.times):
            if not result.times:
                result.problem = "not measured: the time is used up; see --seconds"
            return
        torch.compiler.reset()
        gc.collect()
        try:
            model = self._model(result.model)
            with PROVIDERS[result.provider](model) as ready:
                (self._train if result.work == "training" else self._decode)(result, ready)
        except Exception as error:
            result.problem = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            result.tokens_per_second = result.milliseconds = result.peak_gib = None  # of an earlier round

    def _model(self, name: str) -> Any:
        torch.manual_seed(0)
        with self.device:
            model = self.models[name].make(self.attention)
        return model.to(torch.float32 if self.on_cpu else torch.bfloat16)

    def _tokens(self, model: Any, shape: tuple[int, int]) -> torch.Tensor:
        return torch.randint(2, model.config.vocab_size, shape, device=self.device)

    def _train(self, result: Result, model: Any) -> None:
        shape = self.models[result.model].batch
        tokens = self._tokens(model, shape)
        model.train()
        losses: list[torch.Tensor] = []

        def step() -> None:
            model.zero_grad(set_to_none=True)
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            losses.append(loss.detach())

        self._time(step, result, shape[0] * shape[1])
        result.loss = float(losses[0])

    def _decode(self, result: Result, model: Any) -> None:
        settings = self.models[result.model]
        model = getattr(model, "_orig_mod", model)  # generate compiles the decoding step itself, with a static cache
        model.eval()
        tokens = self._tokens(model, settings.prompt)
        count = settings.new_tokens
        options = {"cache_implementation": "static"} if "compile" in result.provider else {}

        def generate() -> None:
            model.generate(
                tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=count,
                min_new_tokens=count, pad_token_id=0, **options,
            )  # fmt: skip

        with torch.no_grad():
            self._time(generate, result, settings.prompt[0] * count, count)

    def _time(self, step: Callable[[], None], result: Result, tokens: int, parts: int = 1) -> None:
        """Adds times of steps with `tokens` tokens after a warm-up, divided by `parts`, and sets the peak memory."""
        warm_up, steps = STEPS[result.work]
        for index in range(warm_up + steps):
            if index == warm_up and self.memory is not None:
                self.memory.reset_peak_memory_stats()
            start = time.perf_counter()
            step()
            if not self.on_cpu:
                torch.accelerator.synchronize()
            if index >= warm_up:
                result.times.append((time.perf_counter() - start) * 1e3 / parts)
        if self.memory is not None:
            result.peak_gib = max(result.peak_gib or 0, self.memory.max_memory_allocated() / 2**30)
        result.milliseconds = statistics.median(result.times)
        result.tokens_per_second = tokens / parts / result.milliseconds * 1e3


def main() -> None:
    """Measures the chosen models and providers on the accelerator, or small models on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: all")
    parser.add_argument("--providers", nargs="+", choices=PROVIDERS, help="default: all")
    parser.add_argument("--work", nargs="+", choices=STEPS, default=list(STEPS), help="default: both")
    parser.add_argument("--attention", default="sdpa", help="attn_implementation of transformers (default: sdpa)")
    parser.add_argument("--seconds", type=float, default=200, help="start no provider after this time (default: 200)")
    parser.add_argument("--tiny", action="store_true", help="measure a tiny model; the default on a CPU")
    parser.add_argument("--output", type=Path, default=Path("bench-results"), help="folder of the results")
    arguments = parser.parse_args()
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = found or torch.device("cpu")
    models = TINY if arguments.tiny or found is None else MODELS
    bench = Bench(models, device, arguments.attention, arguments.work, arguments.seconds)
    providers = arguments.providers or list(PROVIDERS)
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    results = []
    for compiles in (False, True):  # measured last, because compilation takes most of the time
        for name in arguments.models or models:
            if name in models:
                results += bench.measure(name, [p for p in providers if ("compile" in p) is compiles])
    order = list(PROVIDERS)
    results.sort(key=lambda r: (list(models).index(r.model), r.work != "training", order.index(r.provider)))
    arguments.output.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "tridal": tridal.__version__}
    record = {"device": str(device), "versions": versions, "results": [asdict(result) for result in results]}
    (arguments.output / "models.json").write_text(json.dumps(record, indent=1) + "\n")
    with style():
        for picture in make_pictures(results, str(device), versions):
            save_png(picture.draw(), arguments.output, picture.name)


if __name__ == "__main__":
    main()
