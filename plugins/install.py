"""Builds the wheels of core and of the plugins in this folder, and installs them where this runs.

    python plugins/install.py FOLDER [DISTRIBUTION ...]

Without names: each plugin whose other requirements are installed already. Nothing comes from an
index. The wheels stay in FOLDER, with constraints as `wheels.py` writes them; where they are
installed and up to date, nothing is done.
"""

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from wheels import ROOT, read_project, required_sources, sources_below, write_constraints

PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
OFFLINE = ["--no-index", "--no-deps"]


def main() -> None:
    """Install into the environment of this interpreter."""
    folder, *wanted = sys.argv[1:]
    sources = required_sources(wanted) if wanted else [*filter(fits, sources_below(ROOT))]
    names, done = " ".join(map(str, sources)), Path(folder, "done")
    if (
        done.is_file()
        and done.read_text() == names
        and done.stat().st_mtime > max(map(last_change, sources))
    ):
        return
    for path in (done, *Path(folder).glob("core_*.whl")):
        path.unlink(missing_ok=True)
    build = [*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*build, *map(str, sources)], check=True)
    wheels = sorted(Path(folder).glob("core_*.whl"))
    write_constraints(Path(folder), wheels)
    subprocess.run([*PIP, "install", *OFFLINE, "--force-reinstall", *map(str, wheels)], check=True)
    done.write_text(names)


def last_change(source: Path) -> float:
    """When a file or a folder changed last of which a wheel is made."""
    paths = [*source.glob("[!.]*.*"), *source.glob("core*"), *source.glob("core*/**/*")]
    return max(path.stat().st_mtime for path in paths if "__pycache__" not in path.parts)


def fits(source: Path) -> bool:
    """True for the folder of a plugin whose requirements are installed, but for distributions of
    ours.
    """
    return all(map(is_met, read_project(source)["dependencies"]))


def is_met(line: str) -> bool:
    """True if a requirement is installed, or names a distribution of ours."""
    requirement = Requirement(line)
    found = next(iter(distributions(name=requirement.name)), None)
    if found is None:
        return requirement.name.startswith("core-")
    return requirement.specifier.contains(found.version, prereleases=True)


if __name__ == "__main__":
    main()
