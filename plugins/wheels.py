"""Builds the wheels of core and of every plugin, and constraints by which pip takes these from their files.

    python plugins/wheels.py dist
    python -m pip install -c dist/constraints.txt core-ddp core-deepspeed

Without the constraints pip would look for `core` on an index, where another project has that name.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def main() -> None:
    """Build them into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sources = [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as backend:
        # One copy of what builds them serves them all.
        needed = {each for source in sources for each in _build_requires(source)}
        subprocess.run([*PIP, "install", "--target", backend, *sorted(needed)], check=True)
        command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", built]
        wheels = []
        for source in sources:
            environment = os.environ | {"PYTHONPATH": backend}
            done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{source}: no wheel.\n{done.stdout}{done.stderr}")
            (wheel,) = Path(built).iterdir()
            wheels.append(Path(shutil.move(wheel, folder / wheel.name)))
            print(wheel.name, flush=True)
    lines = [f"{wheel.name.partition('-')[0].replace('_', '-')} @ {wheel.as_uri()}\n" for wheel in wheels]
    folder.joinpath("constraints.txt").write_text("".join(lines), encoding="utf-8")
    constraints = shlex.quote(str(folder / "constraints.txt"))
    print(f"{len(wheels)} wheels. Install from them: python -m pip install -c {constraints} core-ddp")


def _build_requires(source: Path) -> list[str]:
    return tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]


if __name__ == "__main__":
    main()
