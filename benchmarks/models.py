"""Measures training and decoding of transformers models: tokens per second and peak memory.

    python benchmarks/models.py [--models NAME...] [--providers NAME...] [--work NAME...] [--output FOLDER]

The models have random weights. A training step is a forward with labels and a backward, without an optimizer; with
`--work adamw`, it ends with a step of AdamW, and with `--work graph`, such a step is captured in a CUDA graph, which
is replayed. Decoding is greedy generation with a cache. The providers are: the
unchanged model; `tridal.override_torch`; `tridal.kernelize`, with and without `fused_loss=True`; Liger-Kernel's patch;
torch.compile alone, and with kernelize. Each of them gets a model with the same weights. If it is not installed, or
fails, the reason is listed. Ctrl-C ends a run and keeps its results. Prints medians as a table, and writes them to
models.json, and with matplotlib to pictures. Needs the package transformers.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from model_results import Result, line, table
from model_sizes import MODELS, TINY, Model

import tridal

STEPS = {"training": (3, 10), "adamw": (3, 10), "graph": (3, 10), "decoding": (1, 4)}
"""Numbers of warm-up steps and of measured steps in a round."""
ROUNDS = {"training": 1, "adamw": 1, "graph": 1, "decoding": 3}
"""The providers take turns in this many rounds. The host limits decoding, and the host's speed changes every minute."""
COMPILE_SECONDS = 40
"""A provider that compiles is started only if this time is left."""


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


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Captures a step in a CUDA graph, after some steps on another stream, and returns a function that replays it."""
    if not torch.cuda.is_available():
        raise NotImplementedError("only NVIDIA and AMD GPUs have CUDA graphs")
    torch.cuda.reset_peak_memory_stats()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(STEPS["graph"][0]):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


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
            results = [Result(name, work, p) for p in providers if work != "decoding" or "fused_loss" not in p]
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
                (self._decode if result.work == "decoding" else self._train)(result, ready)
        except KeyboardInterrupt:  # the run ends, and keeps its results
            result.problem, self.end = "interrupted", time.monotonic()
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
        optimizer = None
        graph = result.work == "graph"
        if graph or result.work == "adamw":
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not self.on_cpu, capturable=graph)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            if optimizer is not None:
                optimizer.step()
            losses.append(loss.detach())

        self._time(captured(step) if graph else step, result, shape[0] * shape[1])
        result.loss, result.last_loss = float(losses[0]), float(losses[-1])

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
            if index == warm_up and self.memory is not None and result.work != "graph":  # a replay allocates nothing
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
    parser.add_argument(
        "--work", nargs="+", choices=STEPS, default=["training", "decoding"], help="default: training decoding"
    )
    parser.add_argument("--attention", default="sdpa", help="attn_implementation of transformers (default: sdpa)")
    parser.add_argument("--seconds", type=float, default=200, help="start no provider after this time (default: 200)")
    parser.add_argument("--tiny", action="store_true", help="measure tiny models; the default on a CPU")
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
    results.sort(key=lambda r: (list(models).index(r.model), list(STEPS).index(r.work), order.index(r.provider)))
    arguments.output.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "tridal": tridal.__version__}
    record = {"device": str(device), "versions": versions, "results": [asdict(result) for result in results]}
    (arguments.output / "models.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{table(results)}", flush=True)
    try:
        from model_plots import make_pictures

        from tridal.benchmarks.plot_style import save_png, style
    except ImportError as error:
        print(f"no pictures: {error}")
        return
    with style():
        for picture in make_pictures(results, str(device), versions):
            save_png(picture.draw(), arguments.output, picture.name)


if __name__ == "__main__":
    main()
