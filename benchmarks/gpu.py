"""The first day with a GPU: its steps take ten minutes and no network, and each has a verdict.

    python benchmarks/gpu.py --wheels wheels       # how to make the folder: docs/benchmarks.md

Uses the torch that is installed, 2.9 or later. From the folder it installs what is ours, and what
is missing of the rest, beside the report. Each step is a process with a limit, so that one that
hangs or crashes doesn't end the others. Each verdict is written to `verdicts.jsonl` as it comes;
`report.json` and `report.html` come at the end, and
`python tests/conformance/write_support.py gpu-report/report.json` takes what the kit has proven
into docs/support.md. Without a GPU the same runs on the CPU, smaller. The exit code is 1 if a step
failed.
"""

import argparse
import contextlib
import datetime
import glob
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from html import escape
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd")
LAST_CHARACTERS = 3000
KILL_S = 5


@dataclass(frozen=True)
class Step:
    """One step: a function of `gpu_steps.py`, or a run of the kit.

    Attributes:
        name: by which `--only` names it.
        about: a line of the report.
        limit_s: after which it is ended.
        least_s: that the steps before it leave to it.
        kit: the arguments of `core check`, if it is a run of the kit.
        needs: a module that has to be installed.
        num_devices: that there have to be.
    """

    name: str
    about: str
    limit_s: float
    least_s: float = 10
    kit: tuple[str, ...] = ()
    needs: str = "core"
    num_devices: int = 1


STEPS = (
    Step("detected", "what is here, as core and torch see it", 60, 20),
    Step(
        "hang",
        "a rank that hangs is named, on the engine that `nccl` is",
        75,
        15,
        (),
        "core_ddp",
        2,
    ),
    Step(
        "hang-legacy",
        "the same with TORCH_DIST_USE_NCCL2=0, from torch 2.15 on",
        75,
        15,
        (),
        "core_ddp",
        2,
    ),
    Step(
        "kit-single_device",
        "the conformance kit on one device",
        150,
        20,
        ("core-base:single_device",),
    ),
    Step(
        "kit-ddp",
        "the kit on DDP, on as many devices as there are",
        240,
        20,
        ("core-ddp:ddp",),
        "core_ddp",
    ),
    Step(
        "kit-fsdp",
        "the kit on FSDP, on as many devices as there are",
        180,
        20,
        ("core-fsdp:fsdp",),
        "core_fsdp",
    ),
    Step(
        "precisions", "bf16-mixed, 16-mixed with a real overflow, 16-true, against float32", 60, 20
    ),
    Step("saves", "saving from the device and loading to it, beside a plain copy", 60, 20),
    Step(
        "asynchronous-saves",
        "how long training stands still, and that what is saved is of one moment",
        60,
        20,
    ),
    Step("resume", "random state of the device, and a run that goes on bit-equal", 45, 15),
    Step("compile", "torch.compile inside of a Trainer, against eager", 90, 15),
    Step("memory", "memory statistics, and what a run leaves on the device", 30, 10),
    Step("gpt2", "tokens a second and memory of GPT-2 beside the loop by hand", 150, 60),
    Step(
        "kit-deepspeed",
        "the kit on DeepSpeed",
        120,
        0,
        ("core-deepspeed:deepspeed_stage_2",),
        "deepspeed",
    ),
)


@dataclass
class Verdict:
    """The outcome of a step: `passed`, `failed`, `skipped`, `out of time` or `crashed`."""

    step: str
    about: str
    verdict: str
    seconds: float = 0.0
    why: str = ""
    figures: dict[str, object] = field(default_factory=dict)


class Day:
    """A run of all steps."""

    def __init__(self, report: Path, installed: Path, limit_s: float, is_small: bool) -> None:
        self.report, self.installed, self.is_small = report, installed, is_small
        self.ends_at = time.monotonic() + limit_s
        self.verdicts: list[Verdict] = []
        self.kits: list[object] = []
        self.machine: dict[str, object] = {}

    def note(self, verdict: Verdict) -> None:
        """Write a verdict, at once: the machine may be taken away at any time."""
        self.verdicts.append(verdict)
        print(
            f"{verdict.verdict:>12}  {verdict.step}, {verdict.seconds:.1f} s  "
            f"{first_line(verdict.why)}",
            flush=True,
        )
        with self.report.joinpath("verdicts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self, step: Step, later: list[Step]) -> None:
        """Run one step, within its share of the time that is left."""
        left_s = self.ends_at - time.monotonic() - sum(other.least_s for other in later)
        limit_s = min(step.limit_s, left_s)
        verdict = Verdict(step.name, step.about, "skipped")
        if not self.has(step.needs):
            verdict.why = f"{step.needs} isn't installed"
        elif self.num_devices < step.num_devices:
            verdict.why = f"it takes {step.num_devices} devices, and here is {self.num_devices}"
        elif limit_s < 5:
            verdict.why = "the time is over"
        else:
            self._run(step, limit_s, verdict)
        self.note(verdict)

    def _run(self, step: Step, limit_s: float, verdict: Verdict) -> None:
        command = (
            self._kit(step) if step.kit else [sys.executable, str(HERE / "gpu_steps.py"), step.name]
        )
        result = self.report / f"{step.name}.json"
        result.unlink(missing_ok=True)
        variables = {
            "PYTHONPATH": os.pathsep.join(
                [str(self.installed), os.environ.get("PYTHONPATH", "")]
            ).rstrip(os.pathsep),
            "GPU_DAY": json.dumps(
                {"result": str(result), "small": self.is_small, "limit_s": limit_s}
            ),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1" if self.is_small else "4"),
        }
        began = time.monotonic()
        code, output = run_limited(
            command, os.environ | variables, limit_s, result if step.kit else None
        )
        verdict.seconds = time.monotonic() - began
        content = read_json(result)
        if code is None:
            verdict.verdict, verdict.why = "out of time", f"ended after {limit_s:.0f} s.\n{output}"
        elif content is None:
            verdict.verdict = "crashed" if code < 0 else "failed"
            verdict.why = f"exit code {code} and no result.\n{output}"
        elif step.kit:
            self._judge_kit(content, verdict)
        else:
            verdict.figures = content["figures"]
            verdict.verdict, verdict.why = content["verdict"], content["why"]
        if step.name == "detected" and content:
            self.machine = content["figures"]

    def _kit(self, step: Step) -> list[str]:
        accelerator = "cpu" if self.is_small else "cuda"
        processes = (
            1 if step.name == "kit-single_device" else (2 if self.is_small else self.num_devices)
        )
        options = ["--accelerator", accelerator, "--num-processes", str(processes), "--json"]
        if self.is_small:  # a sign of life
            options += ["-k", "test_training_equals_one_device and (sgd_momentum or adamw_fused)"]
        return [sys.executable, "-m", "core", "check", *step.kit, *options]

    def _judge_kit(self, report: dict, verdict: Verdict) -> None:
        self.kits.append(report)
        outcomes = [test["outcome"] for suite in report["suites"] for test in suite["tests"]]
        failed = [
            test
            for suite in report["suites"]
            for test in suite["tests"]
            if test["outcome"] == "failed"
        ]
        verdict.figures = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        verdict.verdict = "failed" if failed or "passed" not in outcomes else "passed"
        verdict.why = "\n".join(f"{test['name']}: {test['reason']}" for test in failed)

    def has(self, module: str) -> bool:
        """True if a module can be found, without an import."""
        command = [
            sys.executable,
            "-c",
            f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)",
        ]
        environment = os.environ | {
            "PYTHONPATH": f"{self.installed}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        }
        return subprocess.run(command, env=environment, check=False).returncode == 0

    @property
    def num_devices(self) -> int:
        """GPUs; on a CPU as many as are asked for."""
        return 2 if self.is_small else int(self.machine.get("num_devices", 1))  # type: ignore[call-overload]

    def finish(self) -> None:
        """Write the report."""
        report = {
            "date": datetime.date.today().isoformat(),
            "machine": self.machine,
            "small": self.is_small,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "kit": self.kits,
        }
        self.report.joinpath("report.json").write_text(
            json.dumps(report, indent=1), encoding="utf-8"
        )
        self.report.joinpath("report.html").write_text(page(report), encoding="utf-8")


def run_limited(
    command: list[str], environment: dict, limit_s: float, stdout: Path | None
) -> tuple[int | None, str]:
    """The exit code, None if it took too long, and the last lines of what a program wrote. Its
    children end with it.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        out = stdout.open("w") if stdout else output
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=output,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_S)
        finally:
            # what it has left behind, whatever its end
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if stdout:
                out.close()
        output.seek(0)
        return code, output.read()[-LAST_CHARACTERS:]


def refuse_wrong_torch() -> bool:
    """Whether this is to be the small run on a CPU.

    Raises:
        SystemExit: no torch, one that is too old, or a build without CUDA where a GPU is.
    """
    code = (
        "import json, torch; cuda = torch.version.cuda or torch.version.hip; "
        "print(json.dumps([torch.__version__, cuda, torch.cuda.device_count()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        sys.exit(
            "This Python has no torch that can be imported: install torch 2.9 or "
            f"later.\n{done.stderr[-500:]}"
        )
    version, build, count = json.loads(done.stdout.splitlines()[-1])
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (2, 9):
        sys.exit(f"This is torch {version}: 2.9 or later is needed.")
    files = [file for pattern in GPU_FILES for file in glob.glob(pattern)]
    if files and build is None:
        sys.exit(
            f"{files[0]} is there, and torch {version} is a build for the CPU: install one for "
            "CUDA."
        )
    if (
        files
        and not count
        and not any(name in os.environ for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    ):
        sys.exit(
            f"{files[0]} is there, and torch {version} for CUDA {build} counts no GPU: is the "
            "driver as new as that?"
        )
    return not count


def install(folder: Path, target: Path) -> None:
    """Install from the folder what is ours, and what isn't here of the rest. torch is never
    touched.

    Raises:
        SystemExit: it is no folder of wheels, or pip can't install them.
    """
    wheels = {
        wheel.name.partition("-")[0].replace("_", "-").lower(): wheel
        for wheel in sorted(folder.glob("*.whl"))
    }
    if "core-base" not in wheels:
        sys.exit(f"{folder} has no wheel of core-base: python plugins/wheels.py {folder}")
    chosen = [name for name in wheels if name.startswith("core-") or not is_installed(name)]
    chosen = [str(wheels[name]) for name in chosen if name != "torch"]
    shutil.rmtree(target, ignore_errors=True)
    # Without dependencies, which pip would want to put beside these: torch too.
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
    ]
    done = subprocess.run(
        [*command, "--no-deps", "--find-links", str(folder), "--target", str(target), *chosen],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"pip could not install from {folder}:\n{done.stdout}{done.stderr}")


def is_installed(name: str) -> bool:
    """True if a distribution is installed."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def read_json(path: Path) -> dict | None:
    """The content of the file that a step has written; None if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def first_line(text: str) -> str:
    """The first line, for a terminal."""
    return text.strip().partition("\n")[0][:160]


STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .7rem; text-align: left; vertical-align: top; }
.passed { color: #1a7f37; } .failed, .crashed, .out { color: #cf222e; } pre { margin: 0; white-space: pre-wrap; }
"""


def page(report: dict) -> str:
    """The report as one page of HTML that needs nothing else."""
    facts = "".join(
        f"<tr><th>{escape(str(key))}<td>{escape(str(value))}"
        for key, value in report["machine"].items()
    )
    rows = "".join(
        f"<tr><td class={escape(each['verdict'].split()[0])}>{escape(each['verdict'])}<td>{escape(each['step'])}"
        f"<td>{escape(each['about'])}<td>{each['seconds']:.1f} "
        f"s<td><pre>{escape(figures_of(each))}</pre>"
        for each in report["verdicts"]
    )
    return (
        "<!doctype html><meta charset=utf-8><title>core on a GPU, "
        f"{report['date']}</title><style>{STYLE}</style>"
        f"<h1>core on {'a CPU, small' if report['small'] else 'GPUs'}, "
        f"{report['date']}</h1><table>{facts}</table>"
        "<h2>Verdicts</h2><table><tr><th><th>step<th>what<th>took<th>figures, or "
        f"why{rows}</table>\n"
    )


def figures_of(verdict: dict) -> str:
    """Figures a line each, then the reason."""
    lines = [f"{name}: {value}" for name, value in verdict["figures"].items()]
    return "\n".join([*lines, verdict["why"]]).strip()


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder with wheels; left out: core is installed already"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("gpu-report"), help="folder for what is found"
    )
    parser.add_argument(
        "--limit", type=float, default=600, metavar="SECONDS", help="for all of it (600)"
    )
    parser.add_argument("--only", nargs="+", metavar="STEP", choices=[step.name for step in STEPS])
    arguments = parser.parse_args()
    began = time.monotonic()
    is_small = refuse_wrong_torch()
    report = arguments.report.resolve()
    report.mkdir(parents=True, exist_ok=True)
    report.joinpath("verdicts.jsonl").unlink(missing_ok=True)
    if arguments.wheels is not None:
        install(arguments.wheels.resolve(), report / "installed")
    print(
        f"{platform.node()}: {'a CPU, small' if is_small else 'GPUs'}; verdicts in {report}",
        flush=True,
    )
    # The report takes a moment, too.
    day = Day(
        report,
        report / "installed",
        arguments.limit - (time.monotonic() - began) - KILL_S,
        is_small,
    )
    chosen = [
        step for step in STEPS if not arguments.only or step.name in (*arguments.only, "detected")
    ]
    try:
        for number, step in enumerate(chosen):
            day.run(step, chosen[number + 1 :])
    finally:
        day.finish()
    print(f"{report / 'report.html'} and report.json: {time.monotonic() - began:.0f} s", flush=True)
    sys.exit(any(verdict.verdict not in ("passed", "skipped") for verdict in day.verdicts))


if __name__ == "__main__":
    main()
