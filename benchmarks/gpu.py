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
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_day.page import page
from gpu_day.preparation import install, refuse_wrong_torch

HERE = Path(__file__).resolve().parent
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


def read_json(path: Path) -> dict | None:
    """The content of the file that a step has written; None if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def first_line(text: str) -> str:
    """The first line, for a terminal."""
    return text.strip().partition("\n")[0][:160]


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
