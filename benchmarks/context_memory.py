"""Peak memory of a rank that trains a Llama of 8 layers on packed documents, by what it keeps of
the logits. gloo, CPU.

python benchmarks/context_memory.py [--length 1024] [--words 32000]

Documents lie behind each other in a row, with padding at its end. Each line trains three steps in
float64, and says by how much losses and weights differ from those of one device. Peak is that of
the process (ru_maxrss) above what it was before the first step, on the rank that needs most; logits
is the memory of one copy of what a rank has of them.
"""

import argparse
import itertools
import os
import resource
import sys

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from core import Fabric
from core_parallel import MeshParallelStrategy

MIB = 1024 * 1024
PROMPT_FREE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
LAYOUTS = {
    "one device": (1, {}),
    "whole": (4, {"context": 4}),
    "local": (4, {"context": 4, "local_loss": "context"}),
}


def packed(length, words):
    """Three documents and padding: words, positions in their document, and the next words."""
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randint(words, (1, length), generator=draws)
    borders = [0, length // 3, length // 2 + 1, length - length // 8, length]
    places = torch.cat([torch.arange(end - start) for start, end in itertools.pairwise(borders)])[
        None
    ]
    labels = functional.pad(inputs, (0, 1), value=-100)[:, 1:].clone()
    labels[:, [border - 1 for border in borders[1:]]] = -100  # no document foretells the next one
    labels[:, borders[-2] :] = -100
    return inputs, places, labels


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(fabric, length, words):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
    }
    model = fabric.setup(
        LlamaForCausalLM(LlamaConfig(vocab_size=words, num_key_value_heads=4, **sizes)).double()
    )
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, places, labels = packed(length, words)
    before, losses, held = peak_mib(), [], 0.0
    for _ in range(3):
        logits = model(input_ids=inputs, position_ids=places, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        held = getattr(logits, "local", lambda whole=logits: whole)().nbytes / MIB
        del logits
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    peak = fabric.all_gather(torch.tensor(peak_mib() - before, dtype=torch.float64)).max().item()
    return losses, [one.detach().clone() for one in model.module.parameters()], held, peak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--words", type=int, default=32_000)
    arguments = parser.parse_args()
    print(
        f"{'logits kept':>12} {'ranks':>5} {'logits':>8} {'peak':>8} {'of losses':>10} "
        f"{'of weights':>10}"
    )
    expected = None
    for name, (devices, options) in LAYOUTS.items():
        strategy = MeshParallelStrategy(start_method="fork", **options)
        fabric = Fabric(strategy=strategy, devices=devices, accelerator="cpu")
        losses, weights, held, peak = fabric.launch(train, arguments.length, arguments.words)
        expected = expected or (losses, weights)
        of_losses = max(abs(one - other) for one, other in zip(losses, expected[0], strict=True))
        of_weights = max(
            float((a - b).abs().max()) for a, b in zip(weights, expected[1], strict=True)
        )
        print(
            f"{name:>12} {devices:5} {held:4.0f} MiB {peak:4.0f} MiB {of_losses:10.1e} "
            f"{of_weights:10.1e}",
            flush=True,
        )


if __name__ == "__main__":
    if not PROMPT_FREE.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PROMPT_FREE})
    main()
