"""Trains on a Ray cluster of two nodes on this machine, and prints as JSON what came of it.

python ray_program.py WHAT FOLDER
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

# on loopback
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
os.environ |= {"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.2"}

import ray
import torch
from ray.cluster_utils import Cluster
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Absent, Accelerator, Callback, LaunchError, Module, Trainer, WorkerError
from core.accelerators import CPUAccelerator, CUDAAccelerator
from core.callbacks import ModelCheckpoint
from core_ray import RayLauncher
from core_testing.waiting import wait_until

NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}
QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Net(Module):
    def __init__(self, dropout=0.2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)
        )

    def loss(self, batch):
        return (self.layers(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Tells(Callback):
    """Brings back what each rank has told."""

    def __init__(self):
        self.told = []

    def state_dict(self):
        return {"told": self.told}

    def load_state_dict(self, state):
        self.told = state["told"]


class Places(Tells):
    """Where the ranks run."""

    def on_train_start(self, trainer, module):
        node = ray.get_runtime_context().get_node_id()
        mine = [
            trainer.global_rank,
            trainer.local_rank,
            trainer.strategy.node_rank,
            node,
            os.getpid(),
        ]
        self.told = trainer.strategy.gather_objects(mine) or []


class Ends(Callback):
    """Ends rank 1, once: `how` at a moment `when`."""

    def __init__(self, folder, how, when, step):
        self.folder, self.how, self.when, self.step = folder, how, when, step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self._end(trainer, "batch")

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self._end(trainer, "validation")

    def on_fit_start(self, trainer, module):
        self._end(trainer, "start")

    def _end(self, trainer, moment):
        if trainer.global_rank != 1 or moment != self.when or trainer.global_step != self.step:
            return
        marker = self.folder / "ended"
        if marker.exists():
            return
        marker.touch()
        if self.how == "raise":
            raise ValueError("the user's hook fails")
        if self.how == "leave":
            sys.exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


def weights(module):
    return nn.utils.parameters_to_vector(module.parameters()).tolist()


def loader(batch_size):
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 4, generator=generator))
    return DataLoader(data, batch_size=batch_size, shuffle=True)


def on_two_nodes(folder):
    places, net, alone = Places(), Net(dropout=0.0), Net(dropout=0.0)
    options = {"max_epochs": 2, "enable_checkpointing": False, **QUIET}
    trainer = Trainer(
        strategy="ddp", devices=2, num_nodes=2, plugins="ray", callbacks=[places], **options
    )
    trainer.fit(net, loader(4), loader(4))
    tested = trainer.test(net, loader(4))
    single = Trainer(devices=1, **options)
    single.fit(alone, loader(16), loader(16))
    return {
        "places": places.told,
        "weights": [weights(net), weights(alone)],
        "steps": [trainer.global_step, single.global_step],
        "metric": [
            float(trainer.callback_metrics["val_loss"]),
            float(single.test(alone, loader(16))[0]["val_loss"]),
        ],
        "tested": float(tested[0]["val_loss"]),
    }


def failing(folder):
    """The error of rank 1's end, however it ends."""
    told = {}
    for how in ("raise", "leave", "kill"):
        (folder / how).mkdir()
        ends = Ends(folder / how, how, "batch", 3)
        try:
            fit(folder / how, [ends], enable_checkpointing=False)
        except WorkerError as error:
            told[how] = [type(error).__name__, str(error), error.rank, error.worker_traceback]
    return told


def fit(folder, callbacks, launcher=None, ckpt_path=None, **options):
    net, options = (
        Net(),
        {**QUIET, **options, "default_root_dir": folder, "callbacks": callbacks, "max_epochs": 3},
    )
    trainer = Trainer(
        strategy="ddp", devices=1, num_nodes=2, plugins=[launcher or RayLauncher()], **options
    )
    trainer.fit(net, loader(4), loader(4), ckpt_path=ckpt_path)
    return net, trainer


def lost_and_restarted(folder):
    """The weights of an undisturbed run, and of runs that lost rank 1 at several moments."""
    told = {"warnings": {}, "weights": {}, "steps": {}}
    moments = {
        "none": ("never", 0),
        "start": ("start", 0),
        "batch": ("batch", 11),
        "validation": ("validation", 16),
    }
    for name, (when, step) in moments.items():
        (folder / name).mkdir()
        saves = ModelCheckpoint(folder / name, every_n_train_steps=2, save_top_k=-1)
        ends = Ends(folder / name, "kill", when, step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net, trainer = fit(folder / name, [ends, saves], RayLauncher(max_failures=1), "last")
        told["warnings"][name] = [
            str(each.message) for each in caught if "started again" in str(each.message)
        ]
        told["weights"][name], told["steps"][name] = weights(net), trainer.global_step
    return told


def by_address(folder, cluster):
    """The connection that the launcher makes, by an argument and by a variable."""
    told = []
    for launcher, variable in (
        (RayLauncher(cluster.address), ""),
        (RayLauncher(), cluster.address),
    ):
        os.environ["RAY_ADDRESS"] = variable
        places = Places()
        fit(folder, [places], launcher, enable_checkpointing=False)
        told.append([len({place[3] for place in places.told}), ray.is_initialized()])
    del os.environ["RAY_ADDRESS"]
    return told


def without_room(folder):
    try:
        fit(
            folder,
            [],
            RayLauncher(resources_per_worker={"CPU": 3}, placement_timeout_s=3),
            enable_checkpointing=False,
        )
    except LaunchError as error:
        return str(error)


class Claimed(CPUAccelerator, CUDAAccelerator):
    """CPUs that pass for GPUs, of which the program's machine has none."""

    setup_device, synchronize = Accelerator.setup_device, Accelerator.synchronize
    get_rng_state, set_rng_state = Accelerator.get_rng_state, Accelerator.set_rng_state

    @classmethod
    def detect(cls):
        return Absent("no GPU here")


class GPUs(Tells):
    """Which GPUs the ranks have."""

    def on_train_start(self, trainer, module):
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids()["GPU"]
        mine = {
            "gpus": gpus,
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "node": context.get_node_id(),
        }
        self.told = trainer.strategy.gather_objects(mine) or []


def on_gpus(folder):
    """On the one node that has GPUs, which isn't the program's."""
    tells, launcher = GPUs(), RayLauncher()
    options = {**QUIET, "accelerator": Claimed(), "max_epochs": 1, "enable_checkpointing": False}
    trainer = Trainer(
        strategy="ddp", devices="auto", plugins=[launcher], callbacks=[tells], **options
    )
    trainer.fit(Net(), loader(8))
    node = next(node["NodeID"] for node in ray.nodes() if "GPU" in node["Resources"])
    return {"devices": len(trainer.strategy.parallel_devices), "ranks": tells.told, "node": node}


def callback_of_a_function(folder):
    class Counts(Tells):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.told.append(batch_idx)

    brought, loaded = Counts(), Counts()
    options = {**QUIET, "max_epochs": 1, "default_root_dir": folder}
    saves = ModelCheckpoint(folder)
    Trainer(strategy="ddp", devices=2, plugins=["ray"], callbacks=[brought, saves], **options).fit(
        Net(), loader(4)
    )
    alone = Trainer(devices=1, callbacks=[loaded], enable_checkpointing=False, **options)
    alone.fit(Net(), loader(8), ckpt_path=saves.best_model_path)
    return {"brought": len(brought.told), "loaded": len(loaded.told)}


def in_ray_train(folder):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def work():
        net = Net()
        trainer = Trainer(
            strategy="ddp",
            devices=2,
            max_epochs=1,
            plugins="ray",
            enable_checkpointing=False,
            **QUIET,
        )
        environment = trainer.strategy.cluster_environment
        trainer.fit(net, loader(8))
        place = [
            type(environment).__name__,
            type(trainer.strategy.launcher).__name__,
            trainer.world_size,
        ]
        (folder / f"rank-{trainer.global_rank}").write_text(json.dumps([*place, weights(net)]))

    TorchTrainer(
        work,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "runs")),
    ).fit()
    return [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2)]


class Steps(Callback):
    """Notes the steps of each attempt of Ray Train. The first one waits until a machine is to
    go.
    """

    def __init__(self, folder):
        self.folder, self.steps = folder, []

    def on_train_start(self, trainer, module):
        self.attempt = len(list(self.folder.glob(f"steps-{trainer.global_rank}-*")))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.steps.append(trainer.global_step)
        if self.attempt == 0 and len(self.steps) == 3:
            (self.folder / f"trains {ray.get_runtime_context().get_node_id()}").touch()
            wait_until((self.folder / "is to go").exists, "word that a machine is to go")
        if self.attempt == 0:
            time.sleep(0.1)

    def teardown(self, trainer, module, stage):
        (self.folder / f"steps-{trainer.global_rank}-{self.attempt}").write_text(
            json.dumps(self.steps)
        )


def taken_away(folder, cluster):
    """The steps and weights of a run of Ray Train one of whose machines is to go, and of an
    undisturbed one.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from core.callbacks import RayTrainPreemption

    def work():
        callbacks = [Steps(folder), RayTrainPreemption(every_s=0.2)]
        callbacks.append(
            ModelCheckpoint(folder / "saved", save_on_exception=True, every_n_epochs=1000)
        )
        net = Net()
        # Both nodes have the address of one machine.
        trainer = Trainer(strategy="ddp", devices=2, max_epochs=15, callbacks=callbacks, **QUIET)
        trainer.fit(net, loader(4), ckpt_path="last")
        (folder / f"weights-{trainer.global_rank}").write_text(json.dumps(weights(net)))

    def take_away():
        wait_until(
            lambda: len(list(folder.glob("trains *"))) == 2, "two ranks that train", timeout_s=300
        )
        gone.extend(
            node for node in cluster.worker_nodes if (folder / f"trains {node.node_id}").exists()
        )
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "drain-node",
            "--address",
            cluster.address,
        ]
        command += ["--node-id", gone[0].node_id]
        options = [
            "--reason",
            "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message",
            "wanted elsewhere",
        ]
        subprocess.run(
            [*command, *options, "--deadline-remaining-seconds", "300"],
            check=True,
            capture_output=True,
        )
        (folder / "is to go").touch()

    cluster.add_node(num_cpus=2, **NODE)
    cluster.wait_for_nodes()
    gone, thread = [], threading.Thread(target=take_away)
    thread.start()
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2})
    run = RunConfig(storage_path=str(folder / "runs"), failure_config=FailureConfig(max_failures=1))
    TorchTrainer(work, scaling_config=scaling, run_config=run).fit()
    thread.join()
    cluster.remove_node(gone[0])
    told = {
        path.name: json.loads(path.read_text()) for path in folder.glob("*-*") if path.is_file()
    }
    undisturbed = Net()
    alone = Trainer(
        strategy="ddp_spawn", devices=2, max_epochs=15, enable_checkpointing=False, **QUIET
    )
    alone.fit(undisturbed, loader(4))
    return {"undisturbed": weights(undisturbed)} | told


def in_ray_tune(folder):
    from ray import tune

    def work(config):
        trainer = Trainer(
            strategy="ddp",
            devices=2,
            max_epochs=1,
            plugins="ray",
            enable_checkpointing=False,
            **QUIET,
        )
        trainer.fit(Net(), loader(config["batch_size"]))
        tune.report({"steps": trainer.global_step})

    run_config = tune.RunConfig(storage_path=str(folder / "runs"), verbose=0)
    one_by_one = tune.TuneConfig(max_concurrent_trials=1)
    space = {"batch_size": tune.grid_search([4, 8])}
    found = tune.Tuner(work, param_space=space, tune_config=one_by_one, run_config=run_config).fit()
    return sorted(result.metrics["steps"] for result in found)


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **NODE}
    )
    try:
        cluster.add_node(num_cpus=2, num_gpus=2 * (what == "on_gpus"), **NODE)
        cluster.wait_for_nodes()
        if what == "by_address":
            told = by_address(folder, cluster)
        ray.init(address=cluster.address, _node_ip_address="127.0.0.1", logging_level="ERROR")
        if what == "taken_away":
            told = taken_away(folder, cluster)
        elif what != "by_address":
            told = globals()[what](folder)
        still = ray.is_initialized()
        wait_until(lambda: ray.available_resources().get("CPU") == 4, "room as before")
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("TOLD", json.dumps({"told": told, "still": still}))


if __name__ == "__main__":
    main()
