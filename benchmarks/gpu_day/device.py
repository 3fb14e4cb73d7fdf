"""The device: what is here, and its memory."""

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from importlib import metadata

import torch

import core
from core import Trainer
from gpu_day.setting import DEVICE, KIND, MIB, OFF, SMALL, Net, Skip, expect, loader, make_trainer


def detected():
    """Versions, devices and drivers."""
    figures = {
        "core": core.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "num_devices": torch.cuda.device_count(),
    }
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        figures[f"device {index}"] = (
            f"{about.name}, {about.total_memory / 1e9:.1f} GB, {about.major}.{about.minor}"
        )
    if not SMALL:
        figures |= {
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "cudnn": torch.backends.cudnn.version(),
        }
        if shutil.which("nvidia-smi"):
            query = [
                "nvidia-smi",
                "--query-gpu=driver_version,pcie.link.gen.current,pcie.link.width.current",
            ]
            done = subprocess.run(
                [*query, "--format=csv,noheader"], capture_output=True, text=True, check=False
            )
            figures["driver, PCIe"] = done.stdout.strip().replace("\n", "; ")
    for name in ("deepspeed", "triton", "transformer_engine"):
        with suppress(metadata.PackageNotFoundError):
            figures[name] = metadata.version(name)
    strategy = Trainer(**OFF).strategy
    figures["core chooses"] = (
        f"{type(strategy).__name__} on {[str(device) for device in strategy.parallel_devices]}"
    )
    expect(
        SMALL or strategy.root_device.type == "cuda",
        f"a GPU is here, and core chooses {strategy.root_device}",
    )
    return figures


def memory():
    """Memory statistics of the accelerator, and the memory that a run leaves behind."""
    accelerator = Trainer(**OFF, accelerator=KIND, devices=1).strategy.accelerator
    before = accelerator.memory_stats(DEVICE)
    if not before:
        raise Skip(f"{accelerator.name} has no figures")
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    during = accelerator.memory_stats(DEVICE)
    if "allocated_bytes" in during:
        grown = during["allocated_bytes"] - before["allocated_bytes"]
        expect(grown >= 64 * MIB, f"64 MiB more are {grown} bytes in memory_stats")
    del held
    module = Net(width=4096)
    make_trainer().fit(module, loader())
    stats = {"before": before, "after fit": accelerator.memory_stats(DEVICE)}
    return {f"{name} {when}": value for when, each in stats.items() for name, value in each.items()}
