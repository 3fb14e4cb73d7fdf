"""Builds the wheels of core and of the plugins in this folder, and installs them where this runs.

    python plugins/install.py FOLDER [PLUGIN ...]

Without names: each plugin whose other requirements are installed already. Nothing comes from an index. The wheels stay
in FOLDER, with constraints as `wheels.py` writes them. FOLDER belongs to one environment: where an earlier call has
made wheels of the same files, they are installed already, and nothing is done.
"""

import argparse
import hashlib
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from wheels import write_constraints

PLUGINS = Path(__file__).resolve().parent
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def main() -> None:
    """Install into the environment of this interpreter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("plugins", nargs="*", metavar="PLUGIN", help="a folder's name, such as ddp")
    parser.add_argument("--no-check", action="store_true", help="leave out `pip check`")
    arguments = parser.parse_args()
    folders = [PLUGINS / name for name in arguments.plugins] or [*filter(fits, sorted(PLUGINS.iterdir()))]
    sources = [PLUGINS.parent, *folders]
    offline = ["--no-index", "--no-deps"]
    build = [*PIP, "wheel", *offline, "--no-build-isolation", "--wheel-dir", arguments.folder, *map(str, sources)]
    names = [project(source)["name"] for source in sources]
    folder = Path(arguments.folder)
    made_of, is_done = digest(sources), folder / "digest"
    if is_done.is_file() and is_done.read_text() == made_of and all(map(is_installed, names)):
        return
    for path in (is_done, *folder.glob("core_*.whl")):
        path.unlink(missing_ok=True)
    subprocess.run(build, check=True)
    write_constraints(folder, sorted(folder.glob("core_*.whl")))
    subprocess.run(
        [*PIP, "install", *offline, "--force-reinstall", "--find-links", arguments.folder, *names], check=True
    )
    if not arguments.no_check:
        subprocess.run([*PIP, "check"], check=True)
    is_done.write_text(made_of)


def digest(sources: Iterable[Path]) -> str:
    """A digest of all that wheels of these folders are made of."""
    found = hashlib.sha256()
    for path in (path for source in sources for path in files_of(source)):
        found.update(f"{path}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def files_of(source: Path) -> Iterator[Path]:
    """The files of a distribution, in order, but for its tests; of folders beside core only core."""
    for path in sorted(source.iterdir()):
        if path.is_file():
            yield path
        elif path.name == "core" or (path.is_dir() and source != PLUGINS.parent and path.name != "tests"):
            yield from (each for each in sorted(path.rglob("*")) if each.is_file() and each.suffix != ".pyc")


def is_installed(name: str) -> bool:
    """True if there is a distribution of that name."""
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def project(source: Path) -> dict[str, list[str]]:
    """The table `project` of a distribution's source."""
    table: dict[str, list[str]] = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def fits(source: Path) -> bool:
    """True for the folder of a plugin whose requirements are installed, but for distributions of ours."""
    return (source / "pyproject.toml").is_file() and all(map(is_met, project(source)["dependencies"]))


def is_met(line: str) -> bool:
    """True if a requirement is installed, or names a distribution of ours."""
    requirement = Requirement(line)
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return requirement.name.partition("-")[0] == "core"
    return requirement.specifier.contains(found, prereleases=True)


if __name__ == "__main__":
    main()
