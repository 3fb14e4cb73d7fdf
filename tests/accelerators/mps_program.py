"""Program: train on a simulated `mps` and on the CPU, and print what each run came to, as one line of JSON.

    python mps_program.py LIBRARY FOLDER

LIBRARY is what `simulated_metal.build` has compiled; the runs write to FOLDER.
"""

import json
import sys
from pathlib import Path

import torch

from accelerators import simulated_metal
from core import Fabric
from core.strategies import SingleDeviceStrategy
from support.tiny import Tiny, loader, make_trainer

sys.path.insert(0, str(Path(__file__).parents[1] / "downstream" / "sim-device"))
from sim_device.strategy import HostState


class HostSingleDevice(HostState, SingleDeviceStrategy):
    """One device, whose state is copied to the CPU: no file can hold the simulated device's tensors."""


RUNS = {
    "as it is": {},
    "accumulated and clipped": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "16-true": {"precision": "16-true"},
}


def weights_of(module):
    return [weight.detach().cpu().double().tolist() for weight in module.parameters()]


def train(accelerator, **options):
    """Where the weights were after two epochs, what they are, and what was logged."""
    module = Tiny()
    trainer = make_trainer(sys.argv[2], accelerator=accelerator, max_epochs=2, enable_checkpointing=False, **options)
    trainer.fit(module, loader(), loader())
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"device": str(trainer.strategy.root_device), "weights": weights_of(module), "logged": logged}


def resumed(first, second):
    """Weights after one epoch on the device, a checkpoint, and the second on another kind of device."""
    trainer = make_trainer(sys.argv[2], accelerator=first, strategy=HostSingleDevice(), max_epochs=1)
    trainer.fit(Tiny(), loader())
    path = Path(sys.argv[2], f"from-{first}")
    trainer.save_checkpoint(path)
    module = Tiny()
    trainer = make_trainer(sys.argv[2], accelerator=second, strategy=HostSingleDevice(), max_epochs=2)
    trainer.fit(module, loader(), ckpt_path=path)
    return weights_of(module)


if __name__ == "__main__":
    simulated_metal.register(Path(sys.argv[1]))
    fabric = Fabric()
    fabric.launch()
    facts = {
        "runs": {name: [train(kind, **options) for kind in ("auto", "cpu")] for name, options in RUNS.items()},
        "scaled": train("mps", precision="16-mixed"),
        "resumed": [resumed("mps", "cpu"), resumed("cpu", "mps")],
        "automatic": [str(fabric.device), str(Fabric(accelerator="gpu").device)],
        "memory": sorted(fabric.strategy.accelerator.memory_stats(fabric.device)),
        "random": fabric.strategy.accelerator.get_rng_state(fabric.device).dtype == torch.uint8,
    }
    print(json.dumps(facts))
