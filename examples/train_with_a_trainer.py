"""Trains a small LLaMA with the trainer of transformers or TRL, with the loss head of loss_head.py and without it.

    python examples/train_with_a_trainer.py [--steps N] [--trl]

The rows begin with a prompt, whose labels are -100. The settings of tridal choose the device. Needs the extra
`trainers`: pip install 'tridal[trainers]'.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

import torch

import tridal

INSTALL = "pip install 'tridal[trainers]'"
try:
    import accelerate  # noqa: F401  # transformers' trainer needs it
    import transformers
    from loss_head import LossHeadTrainer, add_loss_head
except ImportError as error:
    sys.exit(f"{error}: {INSTALL}")

VOCABULARY, LENGTH, PROMPT, ROWS, BATCH = 256, 32, 8, 64, 8


def make_rows() -> list[dict[str, list[int]]]:
    """Returns rows of tokens. Each repeats four random words."""
    words = torch.randint(3, VOCABULARY, (16, 4), generator=torch.Generator().manual_seed(0))
    tokens = words.repeat(ROWS // 16, LENGTH // 4)
    labels = tokens.clone()
    labels[:, :PROMPT] = -100
    return [{"input_ids": t, "labels": u} for t, u in zip(tokens.tolist(), labels.tolist(), strict=True)]


def make_trainer(steps: int, by_trl: bool, with_head: bool, folder: str) -> Any:
    """Returns a trainer of a model, which always begins with the same weights."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    model, rows = transformers.LlamaForCausalLM(config), make_rows()
    options: Any = {
        "output_dir": folder, "max_steps": steps, "per_device_train_batch_size": BATCH, "learning_rate": 3e-3,
        "logging_steps": 1, "report_to": [], "use_cpu": tridal.device().type == "cpu", "disable_tqdm": True,
    }  # fmt: skip
    if by_trl:
        try:
            import datasets
            import trl
            from tokenizers import Tokenizer, models
        except ImportError as error:
            sys.exit(f"{error}: {INSTALL}")
        words = Tokenizer(models.WordLevel({str(n): n for n in range(VOCABULARY)}, unk_token="0"))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="2", eos_token="1")
        arguments = trl.SFTConfig(**options, bf16=False)
        data = datasets.Dataset.from_list(rows)
        trainer = trl.SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer)
    else:
        kind = LossHeadTrainer if with_head else transformers.Trainer
        trainer = kind(model, transformers.TrainingArguments(**options), train_dataset=rows)
    if with_head:
        add_loss_head(trainer.model)
    return trainer


def main() -> None:
    """Trains twice, and prints the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--trl", action="store_true")
    given = parser.parse_args()
    history = []
    for with_head in (True, False):
        with tempfile.TemporaryDirectory() as folder, tridal.record_calls() as calls:
            trainer = make_trainer(given.steps, given.trl, with_head, folder)
            trainer.train()
        history.append([entry for entry in trainer.state.log_history if "loss" in entry])
        print(f"{'with' if with_head else 'without'} the head: {len(calls)} calls of tridal")
    for step, (ours, theirs) in enumerate(zip(*history, strict=True)):
        accuracy = ours.get("accuracy", ours.get("mean_token_accuracy"))
        metrics = f"entropy {ours['entropy']:.3f}, accuracy {accuracy:.3f}"
        print(f"step {step:2}: loss with tridal {ours['loss']:.4f}, without {theirs['loss']:.4f}, {metrics}")


if __name__ == "__main__":
    main()
