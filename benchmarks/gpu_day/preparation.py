"""The preparation of the steps: a look at torch and the driver, and the installation of what is ours."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd")


def refuse_wrong_torch() -> bool:
    """Whether this is to be the small run on a CPU.

    Raises:
        SystemExit: no torch, one that is too old, or a build without CUDA where a GPU is.
    """
    code = (
        "import json, torch; cuda = torch.version.cuda or torch.version.hip; "
        "print(json.dumps([torch.__version__, cuda, torch.cuda.device_count()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        sys.exit(
            "This Python has no torch that can be imported: install torch 2.9 or "
            f"later.\n{done.stderr[-500:]}"
        )
    version, build, count = json.loads(done.stdout.splitlines()[-1])
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (2, 9):
        sys.exit(f"This is torch {version}: 2.9 or later is needed.")
    files = [file for pattern in GPU_FILES for file in glob.glob(pattern)]
    if files and build is None:
        sys.exit(
            f"{files[0]} is there, and torch {version} is a build for the CPU: install one for "
            "CUDA."
        )
    if (
        files
        and not count
        and not any(name in os.environ for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    ):
        sys.exit(
            f"{files[0]} is there, and torch {version} for CUDA {build} counts no GPU: is the "
            "driver as new as that?"
        )
    return not count


def install(folder: Path, target: Path) -> None:
    """Install from the folder what is ours, and what isn't here of the rest. torch is never
    touched.

    Raises:
        SystemExit: it is no folder of wheels, or pip can't install them.
    """
    wheels = {
        wheel.name.partition("-")[0].replace("_", "-").lower(): wheel
        for wheel in sorted(folder.glob("*.whl"))
    }
    if "core-base" not in wheels:
        sys.exit(f"{folder} has no wheel of core-base: python plugins/wheels.py {folder}")
    chosen = [name for name in wheels if name.startswith("core-") or not is_installed(name)]
    chosen = [str(wheels[name]) for name in chosen if name != "torch"]
    shutil.rmtree(target, ignore_errors=True)
    # Without dependencies, which pip would want to put beside these: torch too.
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
    ]
    done = subprocess.run(
        [*command, "--no-deps", "--find-links", str(folder), "--target", str(target), *chosen],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"pip could not install from {folder}:\n{done.stdout}{done.stderr}")


def is_installed(name: str) -> bool:
    """True if a distribution is installed."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
