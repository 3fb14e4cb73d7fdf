"""Trains a small Llama, made of a config, in every dimension that its strategy has. Nothing is
downloaded.

pip install 'core-training[hugging-face]'
python examples/llama.py
python examples/llama.py --parallel tensor=2 --devices 2 --accelerator cpu
python examples/llama.py --parallel tensor=2,shard=2 --devices 4 --accelerator cpu

A sentence goes up by one step from any number, modulo the vocabulary, and the model finds out by
which. `--parallel` has sizes of `MeshParallelStrategy`: data, shard, context, and by plans in the
config tensor and pipeline. The module and the numbers stay as they are.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

from core import Module, Trainer

if TYPE_CHECKING:
    from core import Strategy

VOCABULARY, LENGTH = 32, 17
BATCH_SIZE = 32
"""Of all processes together."""


def make_sentences(number: int, seed: int) -> TensorDataset:
    """Sentences of words (number, LENGTH)."""
    draws = torch.Generator().manual_seed(seed)
    first, step = torch.randint(0, VOCABULARY, (2, number, 1), generator=draws)
    return TensorDataset((first + step * torch.arange(LENGTH)) % VOCABULARY)


class Writer(Module):
    """Predicts each next word."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=False,
        )
        self.llama = LlamaForCausalLM(config)

    def compute_loss(self, batch: list[Tensor]) -> Tensor:
        words, following = batch[0][:, :-1], batch[0][:, 1:]
        # The model would count positions from the length that it sees, of which a rank of `context`
        # has a part.
        positions = torch.arange(words.size(1), device=words.device).expand_as(words)
        logits = self.llama(input_ids=words, position_ids=positions, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss = self.compute_loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("validation_loss", self.compute_loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def make_strategy(alias: str, parallel: str | None) -> str | Strategy:
    """The strategy of an alias, or one of `tensor=2,shard=2`: options of `MeshParallelStrategy`."""
    if parallel is None:
        return alias
    from core_parallel import MeshParallelStrategy

    options = dict(option.split("=") for option in parallel.split(","))
    return MeshParallelStrategy(
        **{name: int(value) if value.isdigit() else value for name, value in options.items()}
    )


def train(trainer: Trainer) -> None:
    """Train and validate, and print the loss."""
    torch.manual_seed(0)
    size = BATCH_SIZE // trainer.strategy.data_parallel_size
    sentences, others = (
        DataLoader(make_sentences(number, seed), size) for number, seed in ((1024, 0), (128, 1))
    )
    trainer.fit(Writer(), sentences, others)
    trainer.print(
        f"Loss on 128 new sentences: {float(trainer.callback_metrics['validation_loss']):.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="auto")
    parser.add_argument(
        "--parallel", help="sizes of dimensions, such as tensor=2 or tensor=2,shard=2"
    )
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    trainer = Trainer(
        accelerator=options.accelerator,
        strategy=make_strategy(options.strategy, options.parallel),
        devices=options.devices,
        precision=options.precision,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train(trainer)


if __name__ == "__main__":
    main()
