"""Fine-tunes a model of transformers from a folder, and saves it to another, under any strategy.
Nothing is downloaded.

pip install core-transformers
python examples/pretrained.py
python examples/pretrained.py --strategy fsdp --devices 2 --accelerator cpu
python examples/pretrained.py --parallel tensor=2 --devices 2 --accelerator cpu

The first folder is made here, of a small Llama without training. Each rank reads its own parts of
the files; the last lines load what was saved by `from_pretrained`, as any other program would.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, LlamaConfig

from core import Module, Trainer
from core_transformers import LoadPretrained, SavePretrained, from_config

if TYPE_CHECKING:
    from core import Strategy

WORDS = 32
BATCH_SIZE = 32
"""Of all processes together."""


def make_sentences(number: int, seed: int) -> TensorDataset:
    """Sentences of 16 words that count up by one step, of shape (number, 16)."""
    draws = torch.Generator().manual_seed(seed)
    first, step = torch.randint(0, WORDS, (2, number, 1), generator=draws)
    return TensorDataset((first + step * torch.arange(16)) % WORDS)


class Writer(Module):
    """Predicts each next word."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def prepare_data(self) -> None:
        """One process. Make what would otherwise be downloaded."""
        if not self.folder.exists():
            sizes = {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
            }
            config = LlamaConfig(**sizes, vocab_size=WORDS, tie_word_embeddings=False)
            AutoModelForCausalLM.from_config(config).save_pretrained(self.folder)

    def configure_model(self) -> None:
        self.llama = from_config(self.trainer, self.folder, AutoModelForCausalLM)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = self.llama(input_ids=batch[0], labels=batch[0]).loss
        return loss

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
    parser.add_argument(
        "--folder", type=Path, default=Path("models"), help="where first/ and tuned/ are"
    )
    options = parser.parse_args()
    first, tuned = options.folder / "first", options.folder / "tuned"
    trainer = Trainer(
        accelerator=options.accelerator,
        strategy=make_strategy(options.strategy, options.parallel),
        devices=options.devices,
        precision=options.precision,
        callbacks=[LoadPretrained(first), SavePretrained(tuned)],
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    size = BATCH_SIZE // trainer.strategy.data_parallel_size
    trainer.fit(Writer(first), DataLoader(make_sentences(1024, 0), size))
    if trainer.is_global_zero:
        others = make_sentences(128, 1).tensors[0]
        for folder in (first, tuned):
            model = AutoModelForCausalLM.from_pretrained(folder)
            with torch.no_grad():
                loss = float(model(input_ids=others, labels=others).loss)
            print(f"Loss of {folder.name} on 128 new sentences: {loss:.4f}")


if __name__ == "__main__":
    main()
