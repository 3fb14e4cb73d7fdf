"""Run each plugin's tests from its sdist, unpacked in an empty folder: a table of what passed.

    python tests/by_hand/sdist_tests.py RELEASE FOLDER [PLUGIN ...]     # RELEASE as plugins/release.py makes it

It runs with what is installed in this interpreter's environment, but for core and plugins, which
come from RELEASE. `--declared` gives each an environment with nothing but what it declares, as
`pip install -e ".[test]"` does; by uv. `--core WHEEL` takes another core: so plugins were tried
with the oldest that they promise, the commit before the distribution was named core-training, with
nothing but that name changed. `sdist_tests.txt` has what was found.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("plugins", nargs="*")
    parser.add_argument(
        "--declared", action="store_true", help="in an environment each, with its extra `test`"
    )
    parser.add_argument(
        "--core",
        type=Path,
        metavar="WHEEL",
        help="in the place of the release's; with a new FOLDER",
    )
    arguments = parser.parse_intermixed_args()
    folder, release = arguments.folder.resolve(), arguments.release.resolve()
    failed = False
    for sdist in sorted(release.glob("index/core_*.tar.gz")):
        name = sdist.name.split("-")[0].removeprefix("core_")
        if name == "training" or (arguments.plugins and name not in arguments.plugins):
            continue
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        source = folder / sdist.name.removesuffix(".tar.gz")
        python = (
            declared(source, release)
            if arguments.declared
            else shared(folder, release, arguments.core)
        )
        command = [
            python,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            "tests",
        ]
        # uv compiles nothing, and without files for it each process would compile torch again.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
        (source / "output.txt").write_text(done.stdout + done.stderr)
        last = re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1].strip("= "))
        failed |= done.returncode not in (0, 5)
        print(f"{name:14} {last}", flush=True)
    raise SystemExit(failed)


def shared(folder: Path, release: Path, core: Path | None) -> Path:
    """The Python of an environment of core and all plugins, beside what is installed here."""
    python = folder / "environment" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "environment", symlinks=True, with_pip=True)
        (site,) = folder.glob("environment/lib/*/site-packages")
        others = [path for path in sys.path if path.endswith("site-packages")]
        site.joinpath("others.pth").write_text("\n".join(others))
        options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
        subprocess.run(
            [python, "-m", "pip", "install", *options, *release.glob("index/*.whl")], check=True
        )
        if core:
            subprocess.run([python, "-m", "pip", "install", *options, core], check=True)
    return python


def declared(source: Path, release: Path) -> Path:
    """The Python of an environment of a plugin, in place, and its extra `test`; others of ours are
    the release's.
    """
    python = source / ".venv" / "bin" / "python"
    own = source.name.rpartition("-")[0].replace("_", "-")
    lines = release.joinpath("constraints.txt").read_text().splitlines(keepends=True)
    constraints = source / "constraints.txt"
    constraints.write_text("".join(line for line in lines if not line.startswith(f"{own} @")))
    pins = ["-c", constraints, "-c", Path(__file__).parents[2] / "constraints.txt"]
    subprocess.run(["uv", "venv", "--quiet", "--clear", source / ".venv"], check=True)
    command = ["uv", "pip", "install", "--quiet", "--python", python, *pins, "-e", ".[test]"]
    subprocess.run(command, cwd=source, check=True)
    return python


if __name__ == "__main__":
    main()
