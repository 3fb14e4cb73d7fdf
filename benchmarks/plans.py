"""How long a plan takes, and how much memory, by the size of the model and the number of ranks.

    tox exec -e tests -- python benchmarks/plans.py [8B 70B 400B]

Needs core-plan, core-ddp, core-fsdp, core-parallel and transformers. Models are Llama's shapes of 8
and 70 billion parameters, and a mixture of 128 experts of 400 billion, in bfloat16 with units
computed again in backward; a rank has one sequence of 4,096 tokens a batch.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial
from typing import Any

import torch
import transformers

from core import Module
from core_plan import plan

LENGTH = 4096
RANKS = (8, 128, 1024, 4096)
_LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": LENGTH}
_CONFIGS: dict[str, Any] = {
    "8B": partial(
        transformers.LlamaConfig,
        **_LLAMA,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
    ),
    "70B": partial(
        transformers.LlamaConfig,
        **_LLAMA,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
    ),
    "400B": partial(
        transformers.MixtralConfig,
        **_LLAMA,
        hidden_size=5120,
        intermediate_size=8192,
        num_hidden_layers=25,
        num_attention_heads=40,
        num_local_experts=128,
        num_experts_per_tok=1,
        experts_implementation="grouped_mm",
    ),
}
_STRATEGIES = {"8B": "ddp,fsdp,parallel:tensor=8", "70B": "fsdp,parallel:tensor=8", "400B": "fsdp"}


class Writer(Module):
    """A language model of a size."""

    def __init__(self, size: str) -> None:
        super().__init__()
        self.model = transformers.AutoModelForCausalLM.from_config(_CONFIGS[size]())

    def training_step(self, batch: torch.Tensor) -> Any:
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.zeros(64, LENGTH, dtype=torch.long), batch_size=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", default=[*_CONFIGS])
    print(f"{'model':6} {'strategy':20} {'ranks':>6} {'peak':>12} {'seconds':>8} {'planner':>10}")
    for size in parser.parse_args().sizes:
        for strategy in _STRATEGIES[size].split(","):
            for ranks in RANKS:
                _show(size, strategy, ranks)


def _show(size: str, strategy: str, ranks: int) -> None:
    started_s = time.monotonic()
    (found,) = plan(
        partial(Writer, size),
        strategies=[strategy],
        devices=8,
        num_nodes=ranks // 8,
        precision="bf16-true",
        activation_checkpointing="units",
    )
    took_s = time.monotonic() - started_s
    peak = found.failure[:80] if found.failure else f"{found.peak_bytes / 2**30:.1f} GiB"
    # of any process that has planned
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"{size:6} {strategy:20} {ranks:6} {peak:>12} {took_s:8.1f} {most:6.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
