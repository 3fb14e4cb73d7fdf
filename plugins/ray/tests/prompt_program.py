"""Launches a function from `python -c`, and prints as JSON what came back."""

import json
import os
import threading

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}

import torch

from core import Fabric, LaunchError
from core_ray import RayLauncher


class Mine:
    """A class of this program."""

    number = 1


def work(fabric, mine):
    told = fabric.strategy.gather_objects([fabric.global_rank, os.getpid()])
    variables = [os.environ[name] for name in ("CORE_ASKED", "MINE", "CORE_RAY_RESTART_COUNT")]
    assert mine.number == 1
    assert (os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"]) == (str(fabric.global_rank), "2")
    if told is None:
        return None
    ranks, pids = zip(*told, strict=True)
    draws = torch.rand(3).tolist()
    return {
        "ranks": ranks,
        "pids": pids,
        "raylet": os.getppid(),
        "variables": variables,
        "draws": draws,
    }


launcher = RayLauncher(runtime_env={"env_vars": {"MINE": "1"}})
fabric = Fabric(strategy="ddp", accelerator="cpu", devices=2, plugins=[launcher])
torch.manual_seed(5)
draws = torch.rand(3).tolist()
torch.manual_seed(5)
told = {"result": fabric.launch(work, Mine()), "draws": draws}
try:
    fabric.launch(work, threading.Lock())
except LaunchError as error:
    told["unpicklable"] = str(error)
print("TOLD", json.dumps(told))
