"""`core doctor`: examines this machine and what is installed on it.

Each examination stands alone: one that fails is itself a finding.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from functools import partial
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click
from packaging.requirements import Requirement

from core._version import DISTRIBUTION, TRAINING, __version__
from core.cli.cards import digests
from core.cli.layout import say_all, say_json, styled, table
from core.contract import Broken, Found
from core.namesakes import namesakes
from core.registry import (
    REGISTRIES,
    Row,
    Status,
    listing,
    plugin_manager,
)
from core.registry.known_plugins import missing
from core.registry.selection import ALLOW, BLOCK
from core.resolve.candidates import DETECTION_TIMEOUT_S, detect, failure
from core.resolve.time_limit import time_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    State: TypeAlias = Literal["ok", "absent", "note", "broken"]


_COLORS = {"ok": "green", "absent": "bright_black", "note": "yellow", "broken": "red"}


_EXAMPLES = """\b
Examples:
  core doctor
  core doctor --json
  core doctor --verify dist/release.json
"""

TESTED_TORCH = ("2.9", "2.13", "2.15")
"""Releases of torch that tests have run on: that of `constraints.txt` in CI, an older and a newer
one by hand.
"""


_TORCH_ADVICE = (
    "Install torch again. It reads the metadata of all packages: repair what is damaged (see "
    "below), or set TORCH_DEVICE_BACKEND_AUTOLOAD=0. Devices were not examined."
)
_FOLDER = Path(__file__).resolve().parents[1]


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        subject: what was looked at.
        state: `ok`; `absent`, which is in order; `note`, worth knowing; `broken`.
        detail: what was seen, and what to do if it is broken.
    """

    subject: str
    state: State
    detail: str


@click.command(short_help="Examine this machine and what is installed on it.", epilog=_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects.")
@click.option(
    "--verify",
    "release",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="RELEASE.JSON",
    help="Compare the installed files with those of a release, which its release.json lists.",
)
def doctor(as_json: bool, release: Path | None) -> None:
    """Examine Python, torch, devices, communication, plugins and the path; exit with 1 if something
    is broken.

    States: ok; absent, which is in order; note, which you may want to know; broken.
    """
    findings = list(examine())
    if release is not None:
        findings += _guarded(partial(examine_release, release))
    broken = [finding.subject for finding in findings if finding.state == "broken"]
    if as_json:
        say_json([finding._asdict() for finding in findings])
    else:
        cells = [
            [one.subject, styled(one.state, fg=_COLORS[one.state]), one.detail] for one in findings
        ]
        summary = "Everything is in order."
        if broken:
            summary = f"Broken: {', '.join(broken)}."
        say_all([*table(["What", "State", "Detail"], cells), "", summary])
    if broken:
        raise SystemExit(1)


def examine() -> Iterator[Finding]:
    """Look at everything, in the order of the report."""
    of_torch = (_backends, _found_here)
    for examination in (_versions, _other_cores, _torch, *of_torch, _selection, _plugins):
        # A second attempt to import a torch that has failed can end the interpreter.
        if "torch" in sys.modules or examination not in of_torch:
            yield from _guarded(examination)


def _guarded(examination: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from examination()
    except Exception as cause:
        name = getattr(examination, "__name__", "release").strip("_").replace("_", " ")
        yield Finding(name, "broken", f"{type(cause).__name__}: {cause}")


def _versions() -> Iterator[Finding]:
    yield Finding(
        "python", "ok", f"{platform.python_version()}, {sys.executable}, {platform.platform()}"
    )
    yield Finding("core", "ok", f"{__version__}, {_FOLDER}")


def _other_cores() -> Iterator[Finding]:
    """Anything else that `import core` could mean: an old copy on the path, or the folder where the
    user stands.
    """
    here = Path.cwd()
    for folder in dict.fromkeys(
        [here, *(Path(os.path.abspath(entry or ".")) for entry in sys.path)]
    ):
        for found in (folder / "core", folder / "core.py"):
            # the command is a file `core`, which can't be imported
            is_there = (found.suffix and found.is_file()) or any(found.glob("*.py"))
            if is_there and found.resolve() != _FOLDER:
                yield Finding("another core", "note", f"{found} {_trap(found, folder == here)}")
    yield from _other_distributions()


def _trap(found: Path, is_here: bool) -> str:
    if not is_here:
        return (
            "has the same name; the one that comes first on sys.path is imported. Remove the other."
        )
    if found.is_dir() and not (found / "__init__.py").exists():
        return (
            "has no __init__.py, and so hides nothing; with one it would, for `python` started "
            "here."
        )
    return "hides the package from `python -c`, `python -m` and notebooks started here. Rename it."


def _other_distributions() -> Iterator[Finding]:
    import importlib_metadata

    for other in namesakes():
        detail = (
            f"{other} has the name or brings a package `core`, which overwrites or hides "
            "ours: `pip uninstall` it."
        )
        yield Finding("another core", "broken", detail)
    for name in (DISTRIBUTION, TRAINING):
        copies = list(importlib_metadata.distributions(name=name))
        folders = [str(copy.locate_file("")) for copy in copies]
        if len(copies) > 1:
            yield Finding(
                name,
                "note",
                f"it is installed {len(copies)} times: {', '.join(folders)}. Remove all but one.",
            )
        if not copies and name == TRAINING:
            yield Finding(name, "absent", f"there is no Trainer: {missing(name)}")
        if copies and copies[0].version != __version__:
            detail = (
                f"the metadata in {folders[0]} says {copies[0].version}, and the code of core is "
                f"{__version__}: install {DISTRIBUTION} and {TRAINING} again, of one release."
            )
            yield Finding(name, "broken", detail)


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as cause:
        detail = f"its import raised {type(cause).__name__}: {cause}. {_TORCH_ADVICE}"
        yield Finding("torch", "broken", detail)
        return
    from core.session.equal_masks import EQUAL_MASKS, HAS_EQUAL_MASKS

    builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": torch.version.xpu}
    build = [f"{name} {version}" for name, version in builds.items() if version] or ["CPU only"]
    yield Finding(
        "torch",
        "ok",
        f"{torch.__version__}, built for {', '.join(build)}, {Path(torch.__file__).parent}",
    )
    yield _tested(torch.__version__)
    if HAS_EQUAL_MASKS and (torch.version.cuda or torch.version.hip):
        yield Finding("torch.compile", "note", EQUAL_MASKS)


def _tested(version: str) -> Finding:
    """A finding on whether core was tested with this release of torch."""
    first, usual, last = TESTED_TORCH
    tested = f"each run of CI tests torch {usual}, on CPUs; {first} and {last} were tested by hand"
    release = ".".join(version.split(".")[:2])
    if release in TESTED_TORCH:
        return Finding("torch release", "ok", tested)
    return Finding("torch release", "note", f"torch {release} is untested: {tested}")


def _backends() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        yield Finding("torch.distributed", "absent", "torch was built without it: one process only")
        return
    for name in ("gloo", "nccl", "mpi", "ucc", "xccl"):
        if getattr(dist, f"is_{name}_available")():
            about = ""
            if name == "nccl":
                about = f", version {'.'.join(map(str, torch.cuda.nccl.version()))}"
            yield Finding(name, "ok", f"a process-group backend of torch{about}")
        else:
            yield Finding(name, "absent", "this torch was built without it")


def _found_here() -> Iterator[Finding]:
    for kind, *nouns in (
        ("accelerator", "device", "devices"),
        ("cluster environment", "process", "processes"),
    ):
        registry = REGISTRIES[kind]
        for name in registry.names():
            subject = f"{kind.removesuffix(' environment')} {name}"
            try:
                with time_limit(DETECTION_TIMEOUT_S):
                    detection = detect(registry.create(name))
            except KeyboardInterrupt:
                raise
            except BaseException as cause:  # a plugin can call sys.exit(), or never come to an end
                yield Finding(subject, "broken", failure(cause))
                continue
            if isinstance(detection, Found):
                noun = nouns[detection.count != 1]
                detail = f"{detection.count} {noun}, priority {detection.priority}"
                yield Finding(subject, "ok", detail)
            elif isinstance(detection, Broken):
                yield Finding(subject, "broken", detection.reason)
            else:
                yield Finding(subject, "absent", detection.reason)


def _selection() -> Iterator[Finding]:
    for variable in (ALLOW, BLOCK):
        if variable in os.environ:
            yield Finding(variable, "note", f"{os.environ[variable]!r} is in force")


def _plugins() -> Iterator[Finding]:
    rows = listing()
    for provider in plugin_manager().providers.values():
        offered = [row for row in rows if row.provider == provider.name and row.kind]
        numbers = Counter(str(row.status) for row in offered)
        counts = ", ".join(f"{number} {status}" for status, number in numbers.items())
        yield Finding(
            f"plugin {provider.name}", "ok", f"{provider.version}: {counts or 'offers nothing'}"
        )
    # A folder that is on the path twice is read twice.
    yield from dict.fromkeys(_problem(row) for row in rows if row.status is not Status.OK)


def _problem(row: Row) -> Finding:
    subject = f"plugin {row.provider}"
    owner = row.location
    if row.kind:
        subject = f"{row.kind} {row.alias}"
        owner = row.provider
    state: State = "note"
    if row.status in (Status.BROKEN, Status.INCOMPATIBLE):
        state = "broken"
    return Finding(subject, state, f"{row.status}: {row.detail} ({owner})".removesuffix(" ()"))


def examine_release(path: Path) -> Iterator[Finding]:
    """Each distribution of a release as it is installed here, file by file, and what these require
    of it in vain.
    """
    from importlib.metadata import distributions

    release = json.loads(path.read_text(encoding="utf-8"))
    found = {name: one for name in release for one in islice(distributions(name=name), 1)}
    for name, installed in found.items():
        released = release[name]["version"]
        files = release[name]["files"]
        site = Path(str(installed.locate_file("")))
        folders = {file.partition("/")[0] for file in files}
        here = {
            f"{folder}/{file}": value
            for folder in folders
            for file, value in digests(site / folder).items()
        }
        changed = [file for file in files if here.get(file) != files[file]]
        added = [file for file in here if file not in files and ".dist-info/" not in file]
        problems = []
        if changed:
            problems.append(f"not as released: {_few(changed)}. Install it again.")
        if added:
            problems.append(f"the release doesn't have {_few(added)}. Delete it.")
        for spec in map(PathFinder.find_spec, folders):
            file = spec is not None and spec.origin
            if file and site.resolve() not in Path(file).resolve().parents:
                problems.append(f"{file} hides it. Rename or delete that.")
        if installed.version != released:
            problems = [f"it has {released}, and {installed.version} is installed"]
        if problems:
            yield Finding(f"release {name}", "broken", " ".join(problems))
        else:
            yield Finding(
                f"release {name}", "ok", f"its {len(files)} files are those of {released}"
            )
    for site in {Path(str(one.locate_file(""))) for one in found.values()}:
        # Code that Python runs at each start, and no package has brought; virtual environments have
        # one such file.
        lists = [each.read_text(encoding="utf-8") for each in site.glob("*.dist-info/RECORD")]
        records = "\n".join(["", *lists])
        for path in sorted(site.glob("*.pth")):
            lines = path.read_text(errors="replace").splitlines()
            runs = any(line.startswith(("import ", "import\t")) for line in lines)
            if runs and path.name != "_virtualenv.pth" and f"\n{path.name}," not in records:
                detail = f"no package has brought {path}, which Python runs. Delete it."
                yield Finding("release", "broken", detail)
    required = {
        Requirement(line).name: name
        for name, one in found.items()
        for line in one.requires or ()
        if "; extra" not in line
    }
    absent = [name for name in release if name not in found]
    for name in absent:
        if name in required:
            detail = f"not installed, and {required[name]} requires it. Install it."
            yield Finding(f"release {name}", "broken", detail)
    if absent:
        yield Finding("release", "absent", f"not installed: {', '.join(absent)}")


def _few(files: Sequence[str]) -> str:
    listed = ", ".join(files[:3])
    if len(files) > 3:
        listed += f" and {len(files) - 3} more"
    return listed
