"""The check that DeepSpeed's parts in C++ are there or can be compiled, made before any process
starts.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import runpy
import shlex
import shutil
import subprocess
import sysconfig
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core_deepspeed.config_keys import OFFLOAD_OPTIMIZER, offload_device, uses_nvme
from core_deepspeed.ops import locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAMES = {
    "cpu_adam": "CPUAdamBuilder",
    "pin_memory": "PinMemoryBuilder",
    "async_io": "AsyncIOBuilder",
}
"""Class of DeepSpeed that compiles it, by name."""

BUILD_LIMIT = timedelta(minutes=30)
"""Limit of the wait for another process that compiles."""

_USES_LIBAIO = "#include <libaio.h>\nint main() { return io_setup(1, nullptr); }\n"


def needed(config: Mapping[str, Any]) -> list[str]:
    """Names of what a run with this DeepSpeed config loads, for Adam: other optimizers are torch's
    own.
    """
    names = ["cpu_adam"] if offload_device(config, OFFLOAD_OPTIMIZER) else []
    return [*names, "pin_memory", "async_io"] if uses_nvme(config) else names


def check(names: Iterable[str], *, limit: timedelta = BUILD_LIMIT) -> list[str]:
    """Main process, before work starts. Check that each is there or can be compiled, and isn't
    being compiled already.

    Args:
        names: keys of `NAMES`.
        limit: of the wait for another process that compiles one of them.

    Returns:
        Those that have to be compiled yet.

    Raises:
        ConfigurationError: ninja, a compiler or libaio is missing; a lock is stale, or kept for too
            long.
    """
    to_load = [name for name in names if name not in shipped()]
    if not to_load:
        return []
    _check_ninja(to_load)
    for name in to_load:
        locks.wait_for(name, folder_of(name) / "lock", limit)
    to_compile = [name for name in to_load if not is_compiled(name)]
    if to_compile:
        _check_compiler(to_compile)
    return to_compile


def prepare(config: Mapping[str, Any]) -> None:
    """Main process, before work starts. `check` what a run needs, and say once a node why it is
    going to wait.

    Args:
        config: of DeepSpeed.

    Raises:
        ConfigurationError: as `check`.
    """
    to_compile = check(needed(config))
    # the strategy knows its rank later than this
    if to_compile and os.environ.get("LOCAL_RANK", "0") == "0":
        logging.getLogger("core").warning(
            "DeepSpeed compiles %s now, which takes minutes. `python -m core_deepspeed.ops build "
            "%s` does that ahead.",
            " and ".join(to_compile),
            " ".join(to_compile),
        )


def left_to_compile(config: Mapping[str, Any]) -> list[str]:
    """Names of what a run with this DeepSpeed config is going to compile."""
    return [name for name in needed(config) if name not in shipped() and not is_compiled(name)]


@contextmanager
def ninja_found_first() -> Iterator[None]:
    """Find the ninja beside this Python first, whose virtual environment may not be activated.

    A ninja of another version takes what it finds for changed, and compiles everything again.
    """
    before = os.environ.get("PATH")
    if (beside := _ninja_beside_python()) and beside != shutil.which("ninja"):
        os.environ["PATH"] = os.pathsep.join((os.path.dirname(beside), before or os.defpath))
    try:
        yield
    finally:
        os.environ.pop("PATH", None) if before is None else os.environ.update(PATH=before)


def folder_of(name: str) -> Path:
    """The folder in which torch compiles it, below TORCH_EXTENSIONS_DIR or the user's cache."""
    # the public name knows the root only
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory(name, verbose=False))


def is_compiled(name: str) -> bool:
    """True if it was compiled here. If its sources have changed since, it is compiled again."""
    return (folder_of(name) / f"{name}.so").exists()


def shipped() -> frozenset[str]:
    """Names of what was compiled when DeepSpeed was installed (DS_BUILD_OPS=1)."""
    spec = importlib.util.find_spec("deepspeed")
    for location in (spec and spec.submodule_search_locations) or ():
        record = Path(location) / "git_version_info_installed.py"
        if record.exists():
            return frozenset(
                name
                for name, there in runpy.run_path(str(record))["installed_ops"].items()
                if there
            )
    return frozenset()


def _check_ninja(names: list[str]) -> None:
    if not _ninja_beside_python() and not shutil.which("ninja"):
        raise ConfigurationError(
            f"DeepSpeed loads {' and '.join(names)} with ninja, and there is no ninja here: pip "
            "install ninja."
        )


def _ninja_beside_python() -> str | None:
    return shutil.which("ninja", path=sysconfig.get_path("scripts"))


def _check_compiler(names: list[str]) -> None:
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(shlex.split(compiler)[0]):
        raise ConfigurationError(
            f"DeepSpeed compiles {' and '.join(names)} on this machine, and there is no C++ "
            f"compiler: {compiler!r} is not in PATH. Install one (apt-get install g++), or name it "
            "in the environment variable CXX."
        )
    if "async_io" in names and not _links_libaio(compiler):
        raise ConfigurationError(
            "Offloading to NVMe needs the library libaio and its header, which aren't here: "
            "apt-get install libaio-dev. If they are in a place of their own, name it: "
            "CFLAGS=-I... and LDFLAGS=-L..."
        )


def _links_libaio(compiler: str) -> bool:
    flags = shlex.split(os.environ.get("CFLAGS", "")), shlex.split(os.environ.get("LDFLAGS", ""))
    command = [
        *shlex.split(compiler),
        *flags[0],
        "-x",
        "c++",
        "-",
        *flags[1],
        "-laio",
        "-o",
        os.devnull,
    ]
    return (
        subprocess.run(
            command, input=_USES_LIBAIO, text=True, capture_output=True, check=False
        ).returncode
        == 0
    )
