"""Trainers of TRL with the loss head of examples/loss_head.py: losses, gradients and entropies of their own head."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import tridal
from extras import of_trainers

ADD_LOSS_HEAD = Path(__file__).parents[2] / "examples" / "loss_head.py"
STEPS, WORDS = 3, 64
METRICS = ("loss", "grad_norm", "entropy")
ROWS = [[str(3 + (7 * row + 5 * column) % (WORDS - 3)) for column in range(14)] for row in range(16)]
"""Rows of words, which are numbers."""


def make_model() -> Any:
    transformers = of_trainers("transformers")
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=WORDS, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def make_tokenizer() -> Any:
    tokenizers = of_trainers("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(n): n for n in range(WORDS)}, unk_token="0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    kind = of_trainers("transformers").PreTrainedTokenizerFast
    return kind(tokenizer_object=words, unk_token="0", eos_token="1", pad_token="2")


def dpo(**options: Any) -> Any:
    """Prefers answers of five words to longer ones."""
    trl, datasets = of_trainers("trl"), of_trainers("datasets")
    texts = [{"prompt": row[:4], "chosen": row[4:9], "rejected": row[8:14]} for row in ROWS]
    rows = [{name: " ".join(["", *words]) for name, words in row.items()} for row in texts]
    return trl.DPOTrainer(
        make_model(), ref_model=make_model(), args=trl.DPOConfig(**options), processing_class=make_tokenizer(),
        train_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip


def grpo(**options: Any) -> Any:
    """Rewards different words. The second update with a batch is not on-policy."""
    trl, datasets = of_trainers("trl"), of_trainers("datasets")
    options |= {"num_generations": 4, "max_completion_length": 8, "num_iterations": 2, "temperature": 0.9}

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [len(set(text.split())) / 8 for text in completions]

    return trl.GRPOTrainer(
        make_model(), reward_funcs=reward, args=trl.GRPOConfig(**options), processing_class=make_tokenizer(),
        train_dataset=datasets.Dataset.from_list([{"prompt": " ".join(row[:4])} for row in ROWS]),
    )  # fmt: skip


@pytest.mark.slow("it trains two models")
@pytest.mark.nightly("the tests of train_with_a_trainer.py, which uses the same head")
@pytest.mark.parametrize("make_trainer", [dpo, grpo])
def test_trainer_with_the_loss_head_has_the_numbers_of_its_own_head(
    device: torch.device, tmp_path: Path, make_trainer: Any
) -> None:
    of_trainers("accelerate")
    add_loss_head = runpy.run_path(str(ADD_LOSS_HEAD))["add_loss_head"]
    found = []
    for has_head in (False, True):
        trainer = make_trainer(
            output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=4, learning_rate=1e-3, report_to=[],
            logging_steps=1, use_cpu=device.type == "cpu", bf16=False, disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        if has_head:
            options = {"temperature": trainer.args.temperature} if make_trainer is grpo else {}
            for model in filter(None, (trainer.model, getattr(trainer, "ref_model", None))):
                add_loss_head(model, **options)
        of_trainers("transformers").set_seed(1)
        with tridal.record_calls() as calls:
            trainer.train()
        assert bool(len(calls)) is has_head
        found.append([[entry[name] for name in METRICS] for entry in trainer.state.log_history if "loss" in entry])
    assert len(found[0]) == STEPS
    for theirs, ours in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        assert theirs[1] > 0.1
        assert theirs[2] > 3
