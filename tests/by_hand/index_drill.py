"""Take a release to a package index on this machine, and use it from there as strangers would, with
pip and with uv.

    python tests/by_hand/index_drill.py FOLDER --torch torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl

FOLDER is new. It needs pypiserver, hatchling and uv, some minutes, and two GB.

The index has this release and torch for CPUs, and leads to the one that pip is configured for where
it lacks something. What is run, and what came of it, is printed and kept in FOLDER/log.txt;
`index_drill.txt` has the lines of last time. The exit code is 1 if anything went otherwise.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIGHT = [
    *("bagua", "ddp", "fsdp", "neighbour", "parallel", "report", "training", "transformers"),
]
"""Plugins whose README's program needs neither a device nor a library that they don't require."""

SQUAT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "{version}"
dependencies = {dependencies}
[tool.hatch.build.targets.wheel]
bypass-selection = true
"""


class Drill:
    """A folder with an index, environments, and a log."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.index, self.failed = folder, folder / "index", 0
        self.log = (folder / "log.txt").open("w")
        # Nothing but the index: whatever this machine is configured with would bring other
        # releases.
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))
        }
        self.environment |= {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        if "PIP_CERT" in os.environ:
            self.environment |= {
                "PIP_CERT": os.environ["PIP_CERT"],
                "SSL_CERT_FILE": os.environ["PIP_CERT"],
            }

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.log.write(text + "\n")

    def step(
        self,
        title: str,
        *command: object,
        expect: str = "",
        fails: bool = False,
        cwd: Path | None = None,
    ) -> str:
        """Run a command; it must end with success (or not, if it `fails`), and print what is
        expected.
        """
        begin = time.monotonic()
        done = subprocess.run(
            [str(part) for part in command],
            env=self.environment,
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
        )
        output = done.stdout + done.stderr
        is_right = (done.returncode != 0) == fails and re.search(
            expect, " ".join(output.split())
        ) is not None
        self.failed += not is_right
        self.say(f"{'ok    ' if is_right else 'FAILED'} {title} ({time.monotonic() - begin:.0f} s)")
        self.log.write(f"$ {' '.join(map(str, command))}\n{output}\n")
        if not is_right:
            self.say("\n".join(output.splitlines()[-15:]))
        return output

    def serve(self, folder: Path, *options: str) -> str:
        """A package index over the files of a folder; its address."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "pypiserver",
            "run",
            "-i",
            "127.0.0.1",
            "-p",
            str(port),
            "-P",
            ".",
            "-a",
            ".",
        ]
        self.servers = [
            *getattr(self, "servers", []),
            subprocess.Popen([*command, *options, folder]),
        ]
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return f"http://127.0.0.1:{port}/simple/"
            time.sleep(0.1)

    def make_wheel(self, name: str, version: str, dependencies: str, into: Path) -> None:
        source = self.folder / f"source-{name}-{version}"
        source.mkdir()
        if name == "core":  # the others bring no file
            (source / "core").mkdir()
            (source / "core" / "__init__.py").touch()
        (source / "pyproject.toml").write_text(
            SQUAT.format(name=name, version=version, dependencies=dependencies)
        )
        self.step(
            f"build {name} {version}",
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-d",
            into,
            cwd=source,
        )


def newer(drill: Drill) -> None:
    """Put a core-ddp 0.1.1 beside the 0.1.0 of the release."""
    source = drill.folder / "newer"
    shutil.copytree(ROOT / "plugins" / "ddp", source, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "core_ddp" / "_version.py").write_text('__version__ = "0.1.1"\n')
    drill.step(
        "build core-ddp 0.1.1",
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        drill.index,
        cwd=source,
    )


def first_program(page: Path, path: Path) -> Path:
    text = page.read_text(encoding="utf-8")
    path.write_text(
        next(
            block
            for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
            if "import" in block
        )
    )
    return path


def use(drill: Drill, tool: str, url: str, squat: str) -> None:
    """All that a user does, with one of the installers, in a fresh environment."""
    place = drill.folder / f"with {tool}"  # a path with a blank
    drill.step(
        f"{tool}: a fresh environment",
        *([sys.executable, "-m", "venv"] if tool == "pip" else ["uv", "venv"]),
        place,
    )
    python, core = place / "bin" / "python", place / "bin" / "core"
    if tool == "pip":
        install = [python, "-m", "pip", "install", "--quiet", "--index-url", url]
        remove = [python, "-m", "pip", "uninstall", "--quiet", "--yes"]
    else:
        install = ["uv", "pip", "install", "--quiet", "--python", python, "--index-url", url]
        remove = ["uv", "pip", "uninstall", "--quiet", "--python", python]
    drill.step(f"{tool}: install core-ddp core-report", *install, "core-ddp==0.1.0", "core-report")
    drill.step(
        f"{tool}: torch is that of the index",
        python,
        "-c",
        "import torch; print(torch.__version__)",
        expect=r"2\.13\.0\+cpu",
    )
    drill.step(
        f"{tool}: core list-strategies",
        core,
        "list-strategies",
        expect="ddp DDPStrategy core-ddp 0.1.0 ok",
    )
    program = first_program(ROOT / "README.md", drill.folder / "program.py")
    drill.step(f"{tool}: README's program", python, program, expect="2 processes: y = 3.0 x")
    release = drill.folder / "release" / "release.json"
    drill.step(
        f"{tool}: doctor --verify",
        core,
        "doctor",
        "--verify",
        release,
        expect=r"core-ddp ok its \d+ files",
    )
    drill.step(f"{tool}: the extra safetensors", *install, "core-training[safetensors]")
    drill.step(f"{tool}: upgrade", *install, "--upgrade", "core-ddp")
    drill.step(
        f"{tool}: ... to the newest",
        core,
        "list-strategies",
        expect="DDPStrategy core-ddp 0.1.1 ok",
    )
    drill.step(
        f"{tool}: ... which the release hasn't",
        core,
        "doctor",
        "--verify",
        release,
        fails=True,
        expect="0.1.1 is installed",
    )
    drill.step(f"{tool}: downgrade", *install, "core-ddp==0.1.0")
    drill.step(
        f"{tool}: a plugin for a core that isn't there",
        *install,
        "core-future",
        fails=True,
        expect="core-training",
    )
    no_deps = [*install, "--no-deps", "core-future"]
    drill.step(f"{tool}: ... installed all the same", *no_deps)
    drill.step(
        f"{tool}: ... leaves the others alone",
        core,
        "list-strategies",
        expect="DDPStrategy core-ddp 0.1.0 ok",
    )
    constraints = drill.folder / "release" / "constraints.txt"
    squatted = [
        *install,
        "--extra-index-url",
        squat,
        "--reinstall" if tool == "uv" else "--force-reinstall",
        "--no-deps",
    ]
    drill.step(
        f"{tool}: a squatter's 99.0 loses",
        *squatted,
        "-c",
        constraints,
        "core-base",
        "core-training",
        "core-ddp",
    )
    drill.step(
        f"{tool}: ... and ours is there",
        core,
        "list-strategies",
        expect="DDPStrategy core-ddp 0.1.0 ok",
    )
    drill.step(f"{tool}: plugins", *install, *(f"core-{name}" for name in LIGHT), "core-testing")
    for name in LIGHT if tool == "pip" else ("ddp", "report", "training"):
        page = ROOT / "plugins" / name / "README.md"
        drill.step(
            f"{tool}: program of core-{name}",
            python,
            first_program(page, drill.folder / f"of {name}.py"),
        )
    drill.step(f"{tool}: a foreign core", *squatted, "core")
    overwritten = {"fails": True, "expect": "core 99.0 has overwritten"}
    drill.step(f"{tool}: ... is named", core, "doctor", **overwritten)
    drill.step(
        f"{tool}: ... by an import too", python, "-c", "import core.strategies", **overwritten
    )
    drill.step(f"{tool}: ... is uninstalled", *remove, "core")
    drill.step(f"{tool}: ... and ours comes back", *squatted, "-c", constraints, "core-base")
    drill.step(
        f"{tool}: ... whole",
        core,
        "doctor",
        "--verify",
        release,
        expect=r"core-base ok its \d+ files",
    )
    drill.step(f"{tool}: uninstall core-ddp", *remove, "core-ddp")
    drill.step(
        f"{tool}: ... is said",
        core,
        "explain",
        "--strategy",
        "ddp",
        fails=True,
        expect="pip install core-ddp",
    )
    drill.step(f"{tool}: uninstall core-training", *remove, "core-training", "core-base")
    drill.step(
        f"{tool}: ... leaves nothing",
        python,
        "-c",
        "import core.cli",
        fails=True,
        expect="No module named 'core",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--torch", type=Path, required=True, help="the wheel of torch 2.13.0 for CPUs"
    )
    arguments = parser.parse_args()
    drill = Drill(arguments.folder.resolve())
    release = drill.folder / "release"
    command = [sys.executable, ROOT / "plugins" / "release.py", release, "--draft"]
    done = subprocess.run(command, capture_output=True, text=True)
    drill.say(done.stdout)
    shutil.copytree(release / "index", drill.index)
    os.link(arguments.torch, drill.index / arguments.torch.name)
    newer(drill)
    drill.make_wheel("core-future", "1.0", '["core-training>=9"]', drill.index)
    squatter = drill.folder / "squatter"
    for name in ("core-base", "core-training", "core-ddp", "core"):
        drill.make_wheel(name, "99.0", "[]", squatter)
    try:
        url, squat = (
            drill.serve(drill.index, "--fallback-url", "https://pypi.org/simple/"),
            drill.serve(squatter),
        )
        for tool in ("pip", "uv"):
            use(drill, tool, url, squat)
    finally:
        for server in drill.servers:
            server.terminate()
            server.wait()
    drill.say(f"{drill.failed} went otherwise" if drill.failed else "All as it should be.")
    raise SystemExit(bool(drill.failed))


if __name__ == "__main__":
    main()
