"""Trains a small GPT on the source of Python's standard library, character by character, and lets
it write some.

    python examples/char_gpt.py
    python examples/char_gpt.py --strategy ddp --devices 2 --accelerator cpu
    torchrun --nproc-per-node 2 examples/char_gpt.py --accelerator cpu
    python examples/char_gpt.py --parallel pipeline=2 --devices 2 --accelerator cpu
    python examples/char_gpt.py --parallel pipeline=2,schedule=1F1B,data=2 --devices 4 --accelerator cpu

The loop is plain PyTorch. What Fabric does in it stands in the lines that say `fabric`.
`--parallel` takes every dimension of `MeshParallelStrategy` (data, shard, tensor, pipeline,
context). The loop and the numbers stay as they are.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from core import Fabric

if TYPE_CHECKING:
    from collections.abc import Callable

    from core import Strategy

TEXT_BYTES = 2_000_000
CONTEXT = 64
BATCH_SIZE = 32
"""Of all processes together."""
VALIDATE_EVERY = 50


def read_standard_library(size_bytes: int) -> str:
    """The first `size_bytes` of the modules beside `os`, in the order of their names, as ASCII."""
    folder = Path(os.path.dirname(os.__file__))
    pieces, left = [], size_bytes
    for path in sorted(folder.glob("*.py")):
        pieces.append(path.read_bytes()[:left].decode("ascii", errors="ignore"))
        left -= path.stat().st_size
        if left <= 0:
            break
    return "".join(pieces)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Every stretch of CONTEXT characters in a text, with the characters that follow each of
    them.
    """

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return len(self.text) - CONTEXT

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        return self.text[start : start + CONTEXT], self.text[start + 1 : start + 1 + CONTEXT]


class Block(nn.Module):
    """Attention to what came before, then a small network for each position; each adds nothing at
    first.
    """

    def __init__(self, width: int, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape. A rank of a tensor group has some of the
        heads.
        """
        normed = self.norm_1(x)
        query, key, value = (
            to(normed).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for to in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Predicts the next character at every position (Radford et al., 2018).

    It is also given the character before each one, so that pairs needn't be found by attention.
    """

    tensor_parallel_plan: ClassVar = {
        **{f"blocks.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"blocks.*.{name}": "rowwise" for name in ("output", "down")},
    }
    """How `tensor` cuts the layers."""

    def __init__(
        self, num_characters: int, width: int = 128, num_blocks: int = 2, num_heads: int = 4
    ) -> None:
        super().__init__()
        self.characters, self.before = (
            nn.Embedding(num_characters, width),
            nn.Embedding(num_characters, width),
        )
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, width // num_heads) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        for table in (self.characters, self.before, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def pipeline(self) -> list[Callable[..., Tensor]]:
        """The parts that `pipeline` distributes. The functions use one table on the first stage and
        on the last.
        """
        return [self.embed, *self.blocks, self.norm, self.to_logits]

    def embed(self, characters: Tensor, before: Tensor, positions: Tensor) -> Tensor:
        """Map indices (batch, length) to states (batch, length, width)."""
        return self.characters(characters) + self.before(before) + self.positions(positions)

    def to_logits(self, states: Tensor) -> Tensor:
        """Map states to logits (batch, length, num_characters), by the table of characters."""
        return F.linear(states, self.characters.weight)

    def forward(self, characters: Tensor, before: Tensor, positions: Tensor) -> Tensor:
        """Map indices (batch, length) to logits (batch, length, num_characters)."""
        x = self.embed(characters, before, positions)
        for block in self.blocks:
            x = block(x)
        return self.to_logits(self.norm(x))


def predict(model: nn.Module, characters: Tensor) -> Tensor:
    """Logits for indices (batch, length). What follows from whole sequences is made here, and
    `context` cuts it.
    """
    before = F.pad(characters[:, :-1], (1, 0))
    positions = torch.arange(characters.size(1), device=characters.device).expand_as(characters)
    return model(characters, before, positions)


def compute_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    characters, following = batch
    return F.cross_entropy(predict(model, characters).flatten(0, 1), following.flatten())


@torch.no_grad()
def write(
    fabric: Fabric,
    model: nn.Module,
    characters: Tensor,
    num_characters: int,
    temperature: float = 0.8,
) -> Tensor:
    """Go on from indices (length,) by so many characters, each drawn on the host.

    A window that isn't full yet ends with zeros, which no position before them sees: a device that
    compiles what it computes gets one shape.
    """
    for _ in range(num_characters):
        window = characters[-CONTEXT:]
        whole = F.pad(window, (0, CONTEXT - len(window))).to(fabric.device)
        logits = predict(model, whole[None])[0].cpu()[len(window) - 1]
        drawn = torch.multinomial(F.softmax(logits / temperature, dim=-1), num_samples=1)
        characters = torch.cat((characters, drawn))
    return characters


@torch.no_grad()
def evaluate(fabric: Fabric, model: nn.Module, loader: DataLoader) -> float:
    """Mean loss over a loader and all processes. Read, and so computed, batch by batch on every
    device.
    """
    model.eval()
    losses = [compute_loss(model, batch).item() for batch in loader]
    model.train()
    return fabric.all_reduce(torch.tensor(losses, device=fabric.device).mean()).item()


def make_loader(fabric: Fabric, text: Tensor, num_batches: int) -> DataLoader:
    """Random windows of the text; each share of the data gets its part of every batch."""
    windows = Windows(text)
    sampler = RandomSampler(windows, replacement=True, num_samples=num_batches * BATCH_SIZE)
    loader = DataLoader(
        windows, batch_size=BATCH_SIZE // fabric.strategy.data_parallel_size, sampler=sampler
    )
    return fabric.setup_dataloaders(loader)


def train(fabric: Fabric, num_steps: int, num_characters: int = 400) -> None:
    fabric.seed_everything(0)
    text = read_standard_library(TEXT_BYTES)
    alphabet = sorted(set(text))
    index = {character: position for position, character in enumerate(alphabet)}
    encoded = torch.tensor([index[character] for character in text])
    split = len(encoded) * 9 // 10

    model = GPT(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=num_steps)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    fabric.print(
        f"{len(text):,} characters, {num_parameters:,} parameters, {fabric.world_size} process(es)"
    )
    model, optimizer = fabric.setup(model, optimizer)
    train_loader = make_loader(fabric, encoded[:split], num_steps)
    validation_loader = make_loader(fabric, encoded[split:], num_batches=20)

    for step, batch in enumerate(train_loader, start=1):
        optimizer.zero_grad()
        loss = fabric.step(model, batch, compute_loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        scheduler.step()
        if step % VALIDATE_EVERY == 0 or step == num_steps:
            validation_loss = evaluate(fabric, model, validation_loader)
            training_loss = fabric.all_reduce(loss).item()
            fabric.print(
                f"step {step:4}   loss {training_loss:.3f}   validation loss {validation_loss:.3f}"
            )

    prompt = torch.tensor([index[character] for character in "def "])
    written = write(fabric, model.eval(), prompt, num_characters)
    fabric.print("\n" + "".join(alphabet[position] for position in written.tolist()))


def make_strategy(alias: str, parallel: str | None) -> str | Strategy:
    """The strategy of an alias, or one of `pipeline=2,schedule=1F1B`: options of
    `MeshParallelStrategy`.
    """
    if parallel is None:
        return alias
    from core_parallel import MeshParallelStrategy

    options = dict(option.split("=") for option in parallel.split(","))
    return MeshParallelStrategy(
        **{name: int(value) if value.isdigit() else value for name, value in options.items()}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument(
        "--strategy",
        default="auto",
        help="an alias of `core list-strategies` (default: %(default)s)",
    )
    parser.add_argument(
        "--parallel", help="sizes of dimensions, such as tensor=2 or pipeline=2,data=2"
    )
    parser.add_argument(
        "--devices", default="auto", help="how many, or which: 2, 0,1, -1 (default: %(default)s)"
    )
    parser.add_argument(
        "--accelerator", default="auto", help="cpu, cuda, mps, ... (default: %(default)s)"
    )
    parser.add_argument(
        "--precision", default="32-true", help="such as bf16-mixed (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=500, help="optimizer steps (default: %(default)s)"
    )
    arguments = parser.parse_args()
    fabric = Fabric(
        strategy=make_strategy(arguments.strategy, arguments.parallel),
        devices=arguments.devices,
        accelerator=arguments.accelerator,
        precision=arguments.precision,
    )
    fabric.launch(train, arguments.steps)


if __name__ == "__main__":
    main()
