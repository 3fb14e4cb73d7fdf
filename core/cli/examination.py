"""The examinations of `core doctor`. Each examination stands alone: one that fails is itself a finding."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

import core
from core._version import __version__
from core.contract import Broken, Found
from core.registry import (
    ACCELERATOR_REGISTRY,
    CLUSTER_ENVIRONMENT_REGISTRY,
    Registry,
    Row,
    Status,
    listing,
    plugin_manager,
)
from core.registry.selection import ALLOW, BLOCK
from core.resolve.candidates import DETECTION_TIMEOUT_S, detect, failure
from core.resolve.time_limit import time_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from core.contract.accelerator import Detection

    State: TypeAlias = Literal["ok", "absent", "note", "broken"]


TESTED_TORCH = ("2.9", "2.13", "2.15")
"""Releases of torch that tests have run on: that of `constraints.txt` in CI, an older and a newer one by hand."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: what was looked at.
        state: `ok`; `absent`, which is in order; `note`, worth knowing; `broken`.
        detail: what was seen, and what to do if it is broken.
    """

    subject: str
    state: State
    detail: str


def examine() -> Iterator[Finding]:
    """Look at everything, in the order of the report."""
    for examination in (_python, _core, _other_cores, _torch):
        yield from _guarded(examination)
    # A second attempt to import a torch that has failed can end the interpreter.
    for examination in (_backends, _accelerators, _clusters) if "torch" in sys.modules else ():
        yield from _guarded(examination)
    for examination in (_selection, _plugins):
        yield from _guarded(examination)


def _guarded(examination: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from examination()
    except Exception as cause:
        yield Finding(examination.__name__.strip("_").replace("_", " "), "broken", f"{type(cause).__name__}: {cause}")


def _python() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")


def _core() -> Iterator[Finding]:
    yield Finding("core", "ok", f"{__version__}, {_folder_of_core()}")


def _other_cores() -> Iterator[Finding]:
    """Anything else that `import core` could mean: an old copy on the path, or the folder where the user stands."""
    here = _folder_of_core()
    folders = dict.fromkeys([str(Path.cwd()), *(os.path.abspath(entry or ".") for entry in sys.path)])
    for folder in folders:
        for found in _named_core(Path(folder)):
            if found.resolve() != here:
                yield Finding("another core", "note", _trap(found, Path(folder)))
    yield from _other_distributions()


def _folder_of_core() -> Path:
    assert core.__file__ is not None
    return Path(core.__file__).resolve().parent


def _named_core(folder: Path) -> list[Path]:
    package, module = (
        folder / "core",
        folder / "core.py",
    )  # the command is a file `core`, which can't be imported
    found = [package] if package.is_dir() and any(package.glob("*.py")) else []
    return [*found, module] if module.is_file() else found


def _trap(found: Path, folder: Path) -> str:
    if folder != Path.cwd():
        return f"{found} has the same name; the one that comes first on sys.path is imported. Remove the other."
    if found.is_dir() and not (found / "__init__.py").exists():
        return f"{found} has no __init__.py, and so hides nothing; with one it would, for `python` started here."
    return f"{found} hides the package from `python -c`, `python -m` and notebooks started here. Rename it."


def _other_distributions() -> Iterator[Finding]:
    import importlib_metadata

    copies = list(importlib_metadata.distributions(name="core"))
    folders = [str(copy.locate_file("")) for copy in copies]
    if len(copies) > 1:
        yield Finding("core", "note", f"it is installed {len(copies)} times: {', '.join(folders)}. Remove all but one.")
    if copies and (version := copies[0].version) != __version__:
        yield Finding(
            "core",
            "broken",
            f"the metadata in {folders[0]} says {version}, and the code is {__version__}: install it again.",
        )


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as cause:
        yield Finding("torch", "broken", f"its import raised {type(cause).__name__}: {cause}. {_torch_advice()}")
        return
    builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": torch.version.xpu}
    build = [f"{name} {version}" for name, version in builds.items() if version] or ["CPU only"]
    yield Finding("torch", "ok", f"{torch.__version__}, built for {', '.join(build)}, {Path(torch.__file__).parent}")
    yield _tested(torch.__version__)


def _tested(version: str) -> Finding:
    """A finding on whether core was tested with this torch, or with an older and a newer one."""
    found, oldest, newest = (Version(one).release[:2] for one in (version, TESTED_TORCH[0], TESTED_TORCH[-1]))
    first, usual, last = TESTED_TORCH
    tested = f"each run of CI tests torch {usual}, on CPUs; {first} and {last} were tested by hand"
    if oldest <= found <= newest:
        return Finding("torch release", "ok", tested)
    return Finding("torch release", "note", f"{tested}: what is {'newer' if found > newest else 'older'} may differ.")


def _torch_advice() -> str:
    """`import torch` looks for plugins of torch, and raises if the metadata of any package at all is malformed."""
    damaged = dict.fromkeys(row.provider for row in listing() if not row.kind and row.status is Status.BROKEN)
    if damaged:
        return (
            f"torch reads the metadata of all packages, and that of {', '.join(damaged)} is damaged (see below): "
            "repair it, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0. Devices were not examined."
        )
    return "Install torch again. Devices were not examined."


def _backends() -> Iterator[Finding]:
    import torch.distributed as dist

    if not dist.is_available():
        yield Finding("torch.distributed", "absent", "torch was built without it: one process only")
        return
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
        "ucc": dist.is_ucc_available(),
        "xccl": dist.is_xccl_available(),
    }
    for name, there in available.items():
        yield Finding(name, "ok" if there else "absent", _about(name) if there else "this torch was built without it")


def _about(backend: str) -> str:
    if backend != "nccl":
        return "a process-group backend of torch"
    import torch

    return f"a process-group backend of torch, version {'.'.join(map(str, torch.cuda.nccl.version()))}"


def _accelerators() -> Iterator[Finding]:
    yield from _detections("accelerator", ACCELERATOR_REGISTRY, "device")


def _clusters() -> Iterator[Finding]:
    yield from _detections("cluster", CLUSTER_ENVIRONMENT_REGISTRY, "process")


def _detections(title: str, registry: Registry, noun: str) -> Iterator[Finding]:  # type: ignore[type-arg]  # any kind
    for name in registry.names():
        try:
            with time_limit(DETECTION_TIMEOUT_S):
                detection = detect(registry.create(name))
        except KeyboardInterrupt:
            raise
        except BaseException as cause:  # a plugin can also call sys.exit(), or never come to an end
            yield Finding(f"{title} {name}", "broken", failure(cause))
        else:
            yield Finding(f"{title} {name}", *_seen(detection, noun))


def _seen(detection: Detection, noun: str) -> tuple[State, str]:
    if isinstance(detection, Found):
        plural = noun if detection.count == 1 else {"process": "processes"}.get(noun, f"{noun}s")
        return "ok", f"{detection.count} {plural}, priority {detection.priority}"
    return ("broken" if isinstance(detection, Broken) else "absent"), detection.reason


def _selection() -> Iterator[Finding]:
    for variable in (ALLOW, BLOCK):
        if (value := os.environ.get(variable)) is not None:
            yield Finding(variable, "note", f"{value!r} is in force" if value else "is set and empty")


def _plugins() -> Iterator[Finding]:
    rows = listing()
    for provider in plugin_manager().providers.values():
        offered = [row for row in rows if row.provider == provider.name and row.kind]
        counts = ", ".join(
            f"{number} {status}" for status, number in Counter(str(row.status) for row in offered).items()
        )
        yield Finding(f"plugin {provider.name}", "ok", f"{provider.version}: {counts or 'offers nothing'}")
    # A folder that is on the path twice is read twice.
    yield from dict.fromkeys(_problem(row) for row in rows if row.status is not Status.OK)


def _problem(row: Row) -> Finding:
    subject, owner = (f"{row.kind} {row.alias}", row.provider) if row.kind else (f"plugin {row.provider}", row.location)
    state: State = "broken" if row.status in (Status.BROKEN, Status.INCOMPATIBLE) else "note"
    return Finding(subject, state, f"{row.status}: {row.detail} ({owner})".removesuffix(" ()"))
