"""Builds the wheels of core and of every plugin, and constraints by which pip takes these from their files.

    python plugins/wheels.py dist
    python -m pip install -c dist/constraints.txt core-ddp core-deepspeed

Without the constraints pip would look for `core` on an index, where another project has that name.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build them into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sources = [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]
    with tempfile.TemporaryDirectory() as built:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built]
        subprocess.run([*command, *map(str, sources)], check=True)
        wheels = [Path(shutil.copy(wheel, folder)) for wheel in sorted(Path(built).glob("*.whl"))]
    lines = [f"{wheel.name.partition('-')[0].replace('_', '-')} @ {wheel.as_uri()}\n" for wheel in wheels]
    folder.joinpath("constraints.txt").write_text("".join(lines), encoding="utf-8")
    print(f"{len(wheels)} wheels. Install from them: python -m pip install -c {folder}/constraints.txt core-ddp")


if __name__ == "__main__":
    main()
