"""Trains through torch_xla's own launch, and shows what becomes of ranks that were started in
another way.

python launched_program.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

from lessons import QUIET, Net, Saving, make_data, refusal, train
from torch.utils.data import DataLoader

from core import ConfigurationError, Fabric, Trainer, WorkerError
from core.cluster import LocalEnvironment


class Failing(Net):
    def training_step(self, batch, batch_idx):
        raise ValueError("the user's step fails")


class TwoRanks(LocalEnvironment):
    """Ranks that something else than the launcher has started."""

    creates_processes = True


XLA = {"accelerator": "xla", "strategy": "ddp_spawn", "devices": 1}
DDP = {"accelerator": "cpu", "strategy": "ddp_fork", "devices": 2, "batch_size": 8}


def main():
    folder, told = Path(sys.argv[1]), {}
    train(callbacks=[Saving(folder / "ddp", at=12)], **DDP)
    module, trainer, _ = train(**XLA)
    told["strategy"] = type(trainer.strategy).__name__
    resumed = train(ckpt_path=folder / "ddp", **XLA)[0]
    told["error"] = error_of_a_rank()
    told["trap"] = errors_of_threads()
    reference = train(accelerator="cpu", devices=1)[0]
    told["trained"], told["resumed"] = (
        furthest_weight(one, reference) for one in (module, resumed)
    )
    print(json.dumps(told))


def furthest_weight(module, other):
    """The largest difference between two modules' weights."""
    state = other.state_dict()
    return max(
        float((value.cpu() - state[name]).abs().max())
        for name, value in module.state_dict().items()
    )


def error_of_a_rank():
    trainer = Trainer(**QUIET, max_epochs=1, accelerator="xla", strategy="xla", devices=1)
    try:
        trainer.fit(Failing(), DataLoader(make_data(), batch_size=16))
    except WorkerError as error:
        return [str(error), error.rank]
    return None


def errors_of_threads():
    """The errors in two threads that torch_xla runs, and counts as a world of one each."""
    os.environ["CPU_NUM_DEVICES"] = "2"
    from torch_xla._internal import pjrt

    told = []
    pjrt.spawn_threads(fall_into_the_trap, args=(told,))
    return told


def fall_into_the_trap(ordinal, told):
    from core.strategies import XLAStrategy

    environment = TwoRanks()
    environment.set_world(world_size=2, global_rank=ordinal, local_rank=ordinal, node_rank=0)
    fabric = Fabric(
        accelerator="xla", devices=2, strategy=XLAStrategy(cluster_environment=environment)
    )
    told.append(refusal(ConfigurationError, fabric.launch))


if __name__ == "__main__":
    main()
