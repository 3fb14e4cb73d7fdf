"""Builds the wheels of core and of the plugins in this folder, and installs them where this runs.

    python plugins/install.py FOLDER [PLUGIN ...]

Without names: each plugin whose other requirements are installed already. Nothing comes from an index. The wheels stay
in FOLDER, with constraints as `wheels.py` writes them.
"""

import argparse
import subprocess
import sys
import tomllib
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
    subprocess.run(build, check=True)
    folder = Path(arguments.folder)
    write_constraints(folder, sorted(folder.glob("core_*.whl")))
    subprocess.run(
        [*PIP, "install", *offline, "--force-reinstall", "--find-links", arguments.folder, *names], check=True
    )
    if not arguments.no_check:
        subprocess.run([*PIP, "check"], check=True)


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
