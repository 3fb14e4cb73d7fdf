"""Builds wheels of our distributions, and constraints by which pip takes these from their files.

    python plugins/wheels.py dist                             # of all
    python plugins/wheels.py dist core-ddp core-deepspeed     # of these, and of what they require
    python -m pip install -c dist/constraints.txt core-ddp core-deepspeed

Without the constraints pip would ask an index, which has none of ours, or somebody else's. Beside
them, `release.json` is what `core doctor --verify` compares the installed files with.
"""

import argparse
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build them into the folder that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="distribution", help="default: all")
    arguments = parser.parse_args()
    try:
        sources = required_sources(arguments.names) if arguments.names else sources_below(ROOT)
    except ValueError as cause:
        parser.error(str(cause))
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built, make_builder() as python:
        wheels = []
        for source in sources:
            command = [python, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", built]
            done = subprocess.run(command, cwd=source, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{source}: no wheel.\n{done.stdout}{done.stderr}")
            (wheel,) = Path(built).iterdir()
            wheels.append(Path(shutil.move(wheel, folder / wheel.name)))
            print(wheel.name, flush=True)
    constraints = write_constraints(folder, wheels)
    write_digests(folder, wheels)
    command = shlex.join(["python", "-m", "pip", "install", "-c", str(constraints)])
    print(f"{len(wheels)} wheels. Install from them: {command}", *(arguments.names or ["core-ddp"]))


def sources_below(root: Path) -> list[Path]:
    """The folders of our distributions: core-base, core-training, and the rest by name."""
    others = [path.parent for path in sorted(root.glob("plugins/*/pyproject.toml"))]
    return [root, *sorted(others, key=lambda folder: folder.name != "training")]


def required_sources(names: Iterable[str]) -> list[Path]:
    """The folders of some distributions of ours, and of those that they require.

    Raises:
        ValueError: a name is none of ours.
    """
    projects = {read_project(source)["name"]: source for source in sources_below(ROOT)}
    wanted, needed = [*names], set()
    while wanted:
        name = wanted.pop()
        if name not in projects:
            raise ValueError(f"{name} is none of {', '.join(sorted(projects))}")
        if name not in needed:
            needed.add(name)
            lines = read_project(projects[name]).get("dependencies", [])
            required = [re.match(r"[\w.-]+", line)[0] for line in lines]
            wanted += [each for each in required if each in projects]
    return [source for name, source in projects.items() if name in needed]


def read_project(source: Path) -> dict[str, Any]:
    """The table `project` of the metadata in a folder."""
    return tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@contextmanager
def make_builder() -> Iterator[str]:
    """The Python of an environment that has pip and what builds our distributions, as long as the
    context lasts.
    """
    with tempfile.TemporaryDirectory() as builder:
        venv.create(builder, symlinks=True, with_pip=True)
        python = str(Path(builder, "bin", "python"))
        needed = {
            "pip>=26.1",
            *(each for source in sources_below(ROOT) for each in _build_requires(source)),
        }
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "--quiet",
                "--disable-pip-version-check",
                "install",
                *sorted(needed),
            ],
            check=True,
        )
        yield python


def write_constraints(folder: Path, wheels: Iterable[Path]) -> Path:
    """Write `constraints.txt`, by which pip and uv take these distributions from these files and
    from nowhere else.
    """
    lines = [
        f"{wheel.name.partition('-')[0].replace('_', '-')} @ {wheel.resolve().as_uri()}\n"
        for wheel in wheels
    ]
    path = folder / "constraints.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_digests(folder: Path, wheels: Iterable[Path]) -> None:
    """Write `release.json`: the version of each distribution and its files' digests, for
    `core doctor --verify`.
    """
    found = {}
    for path in wheels:
        name, version, *_ = path.name.split("-")
        with zipfile.ZipFile(path) as wheel:
            files = {
                each: digest(wheel.read(each))
                for each in sorted(wheel.namelist())
                if not each.endswith("/RECORD")
            }
        found[name.replace("_", "-")] = {"version": version, "files": files}
    folder.joinpath("release.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _build_requires(source: Path) -> list[str]:
    return tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["build-system"][
        "requires"
    ]


if __name__ == "__main__":
    main()
