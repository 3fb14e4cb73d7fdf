"""Program: train on a simulated `mps` and on the CPU, and print what each run came to, as one line
of JSON.

    python mps_program.py LIBRARY FOLDER

LIBRARY is what `simulated_metal.build` has compiled; the runs write to FOLDER.
"""

import json
import sys
from pathlib import Path

import torch

from accelerators import simulated_metal
from core import Fabric
from support.tiny import Tiny, loader, make_trainer

RUNS = {
    "as it is": {},
    "accumulated and clipped": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "16-true": {"precision": "16-true"},
}


def train(accelerator, **options):
    """Where the weights were after two epochs, what they are, and what was logged."""
    module = Tiny()
    trainer = make_trainer(
        sys.argv[2], accelerator=accelerator, max_epochs=2, enable_checkpointing=False, **options
    )
    trainer.fit(module, loader(), loader())
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    weights = [weight.detach().cpu().double().tolist() for weight in module.parameters()]
    return {"device": str(trainer.strategy.root_device), "weights": weights, "logged": logged}


if __name__ == "__main__":
    simulated_metal.register(Path(sys.argv[1]))
    fabric = Fabric()
    fabric.launch()
    facts = {
        "runs": {
            name: [train(kind, **options) for kind in ("auto", "cpu")]
            for name, options in RUNS.items()
        },
        "scaled": train("mps", precision="16-mixed"),
        "automatic": [str(fabric.device), str(Fabric(accelerator="gpu").device)],
        "memory": sorted(fabric.strategy.accelerator.memory_stats(fabric.device)),
        "random": fabric.strategy.accelerator.get_rng_state(fabric.device).dtype == torch.uint8,
    }
    print(json.dumps(facts))
