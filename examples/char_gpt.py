"""Trains a small GPT on the source of Python's standard library, character by character, and lets it write some.

    python examples/char_gpt.py
    python examples/char_gpt.py --strategy ddp --devices 2 --accelerator cpu
    torchrun --nproc-per-node 2 examples/char_gpt.py --accelerator cpu

The loop is plain PyTorch. What Fabric does in it stands in the lines that say `fabric`.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from core import Fabric

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
    """Every stretch of CONTEXT characters in a text, with the characters that follow each of them."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return len(self.text) - CONTEXT

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        return self.text[start : start + CONTEXT], self.text[start + 1 : start + 1 + CONTEXT]


class Block(nn.Module):
    """Attention to what came before, then a small network for each position; each adds nothing at first."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_output = nn.Linear(width, width, bias=False)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        nn.init.zeros_(self.to_output.weight)
        nn.init.zeros_(self.network[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        qkv = self.to_qkv(_shift_half(self.norm_1(x))).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.to_output(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.norm_2(x))


def _shift_half(x: Tensor) -> Tensor:
    """Half of each position's features come from the one before (token shift, Peng et al., "RWKV", 2023).

    Pairs of characters are there from the first step on, and needn't be found by attention.
    """
    half = x.size(-1) // 2
    before = F.pad(x, (0, 0, 1, -1))
    return torch.cat((x[..., :half], before[..., half:]), dim=-1)


class GPT(nn.Module):
    """Predicts the next character at every position (Radford et al., 2018)."""

    def __init__(self, num_characters: int, width: int = 128, num_blocks: int = 2, num_heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(width)
        self.to_logits = nn.Linear(width, num_characters, bias=False)
        self.to_logits.weight = self.characters.weight
        nn.init.normal_(self.characters.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """Map indices (batch, length) to logits (batch, length, num_characters)."""
        positions = torch.arange(characters.size(1), device=characters.device)
        x = self.characters(characters) + self.positions(positions)
        return self.to_logits(self.norm(self.blocks(x)))

    @torch.no_grad()
    def write(self, characters: Tensor, num_characters: int, temperature: float = 0.8) -> Tensor:
        """Go on from indices (length,) by so many characters, each drawn on the host.

        A window that isn't full yet ends with zeros, which no position before them sees: a device that compiles what it
        computes gets one shape.
        """
        characters = characters.cpu()
        for _ in range(num_characters):
            window = characters[-CONTEXT:]
            whole = F.pad(window, (0, CONTEXT - len(window))).to(self.characters.weight.device)
            logits = self(whole[None])[0].cpu()[len(window) - 1]
            drawn = torch.multinomial(F.softmax(logits / temperature, dim=-1), num_samples=1)
            characters = torch.cat((characters, drawn))
        return characters


def compute_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    characters, following = batch
    return F.cross_entropy(model(characters).flatten(0, 1), following.flatten())


@torch.no_grad()
def evaluate(fabric: Fabric, model: nn.Module, loader: DataLoader) -> float:
    """Mean loss over a loader and all processes. Read, and so computed, batch by batch on every device."""
    model.eval()
    losses = [compute_loss(model, batch).item() for batch in loader]
    model.train()
    return fabric.all_reduce(torch.tensor(losses, device=fabric.device).mean()).item()


def make_loader(fabric: Fabric, text: Tensor, num_batches: int) -> DataLoader:
    """Random windows of the text; each process gets its share of every batch."""
    windows = Windows(text)
    sampler = RandomSampler(windows, replacement=True, num_samples=num_batches * BATCH_SIZE)
    loader = DataLoader(windows, batch_size=BATCH_SIZE // fabric.world_size, sampler=sampler)
    return fabric.setup_dataloaders(loader)


def train(fabric: Fabric, num_steps: int) -> None:
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
    fabric.print(f"{len(text):,} characters, {num_parameters:,} parameters, {fabric.world_size} process(es)")
    model, optimizer = fabric.setup(model, optimizer)
    train_loader = make_loader(fabric, encoded[:split], num_steps)
    validation_loader = make_loader(fabric, encoded[split:], num_batches=20)

    for step, batch in enumerate(train_loader, start=1):
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        scheduler.step()
        if step % VALIDATE_EVERY == 0 or step == num_steps:
            validation_loss = evaluate(fabric, model, validation_loader)
            fabric.print(f"step {step:4}   loss {loss.item():.3f}   validation loss {validation_loss:.3f}")

    prompt = torch.tensor([index[character] for character in "def "])
    written = model.eval().write(prompt, num_characters=400)
    fabric.print("\n" + "".join(alphabet[position] for position in written.tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--strategy", default="auto", help="an alias of `core list-strategies` (default: %(default)s)")
    parser.add_argument("--devices", default="auto", help="how many, or which: 2, 0,1, -1 (default: %(default)s)")
    parser.add_argument("--accelerator", default="auto", help="cpu, cuda, mps, ... (default: %(default)s)")
    parser.add_argument("--precision", default="32-true", help="such as bf16-mixed (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="optimizer steps (default: %(default)s)")
    arguments = parser.parse_args()
    fabric = Fabric(
        strategy=arguments.strategy,
        devices=arguments.devices,
        accelerator=arguments.accelerator,
        precision=arguments.precision,
    )
    fabric.launch(train, arguments.steps)


if __name__ == "__main__":
    main()
