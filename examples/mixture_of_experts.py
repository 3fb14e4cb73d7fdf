"""Trains a small mixture-of-experts language model on a module of Python's standard library; needs
core-parallel.

python examples/mixture_of_experts.py
python examples/mixture_of_experts.py --expert 2 --devices 2 --accelerator cpu
python examples/mixture_of_experts.py --expert 2 --devices 4 --accelerator cpu
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core_parallel import ExpertList, ExpertLoad, MeshParallelStrategy

CONTEXT, WIDTH, NUM_EXPERTS = 32, 32, 8


class Mixture(nn.Module):
    """A router and eight small networks, of which each position has two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, NUM_EXPERTS, bias=False)
        self.experts = ExpertList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(NUM_EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, positions, width), of the result too."""
        tokens = x.flatten(0, 1)
        weights, numbers = self.gate(tokens).softmax(-1).topk(2)
        mixed: Tensor = self.experts(tokens, numbers, weights)
        return mixed.view_as(x)


class Block(nn.Module):
    """Attention to what came before, then the mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_qkv, self.to_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mixture = Mixture()

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, positions, width), of the result too."""
        q, k, v = self.to_qkv(self.norm_1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.to_out(attended.transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm_2(x))


class Writer(Module):
    """Two blocks, which predict the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 128)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The mean over positions."""
        (text,) = batch
        x = self.embed(text[:, :-1]) + self.place.weight
        loss = F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), text[:, 1:].flatten())
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_train_epoch_end(self) -> None:
        """Print the mean loss of the epoch."""
        self.print(
            f"Epoch {self.current_epoch + 1}: loss {self.trainer.callback_metrics['loss']:.6f}"
        )


def main() -> None:
    """Parse the command line, train, and print how even the load is."""
    parser = argparse.ArgumentParser(
        description="Train a mixture of experts on the source of argparse."
    )
    parser.add_argument(
        "--expert", type=int, default=1, help="over how many processes experts are distributed"
    )
    parser.add_argument(
        "--devices", type=int, default=1, help="number of processes, each with a device"
    )
    parser.add_argument("--accelerator", default="auto", help="kind of device")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Writer()
    source = Path(argparse.__file__).read_bytes()[:65536].decode("ascii", errors="ignore")
    text = torch.frombuffer(bytearray(source, "ascii"), dtype=torch.uint8).long()
    samples = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    loader = DataLoader(TensorDataset(samples), batch_size=32 // args.devices, shuffle=True)
    trainer = Trainer(
        strategy=MeshParallelStrategy(expert=args.expert),
        accelerator=args.accelerator,
        devices=args.devices,
        max_epochs=args.epochs,
        callbacks=ExpertLoad(each=False),
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        for name, value in trainer.callback_metrics.items():
            if "max_violation" in name:
                print(f"{name} {value:.3f}")


if __name__ == "__main__":
    main()
