"""Program: train on a simulated `mps` and on the CPU, and print what each run came to, as one line of JSON.

    python mps_program.py LIBRARY FOLDER

LIBRARY is what `simulated_metal.build` has compiled; the runs write to FOLDER.
"""

import json
import sys
from pathlib import Path

import torch

from accelerators import simulated_metal
from core import ConfigurationError, Fabric
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


def train(accelerator, **options):
    """Where the weights were after two epochs, what they are, and what was logged."""
    module = Tiny()
    options |= {"accelerator": accelerator, "max_epochs": 2, "enable_checkpointing": False}
    trainer = make_trainer(sys.argv[2], **options)
    trainer.fit(module, loader(), loader())
    weights = [weight.detach().cpu().double().tolist() for weight in module.parameters()]
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"device": str(trainer.strategy.root_device), "weights": weights, "logged": logged}


def resumed():
    """The same after one epoch on the device, a checkpoint, and the second on another kind of device."""
    found = {}
    for first, second in (("mps", "cpu"), ("cpu", "mps")):
        path = Path(sys.argv[2], f"from-{first}")
        trainer = make_trainer(path, accelerator=first, strategy=HostSingleDevice(), max_epochs=1)
        trainer.fit(Tiny(), loader())
        trainer.save_checkpoint(path / "checkpoint")
        module = Tiny()
        trainer = make_trainer(path, accelerator=second, strategy=HostSingleDevice(), max_epochs=2)
        trainer.fit(module, loader(), ckpt_path=path / "checkpoint")
        found[f"{first}, {second}"] = [weight.detach().cpu().double().tolist() for weight in module.parameters()]
    return found


def refusal(**options):
    """What a run that can't be is told."""
    try:
        Fabric(**options)
    except ConfigurationError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    simulated_metal.register(Path(sys.argv[1]))
    fabric = Fabric()
    fabric.launch()
    facts = {
        "runs": {name: [train(kind, **options) for kind in ("auto", "cpu")] for name, options in RUNS.items()},
        "scaled": train("mps", precision="16-mixed"),
        "resumed": resumed(),
        "automatic": [str(fabric.device), str(Fabric(accelerator="gpu").device)],
        "memory": sorted(fabric.strategy.accelerator.memory_stats(fabric.device)),
        "random": fabric.strategy.accelerator.get_rng_state(fabric.device).dtype == torch.uint8,
        "refused": {
            "64-true": refusal(precision="64-true"),
            "ddp": refusal(strategy="ddp"),
            "fsdp": refusal(strategy="fsdp"),
        },
    }
    print(json.dumps(facts))
