"""The cost of a training step on a device over a loop that calls the device's library by hand:
calls, and CPU time.

    python benchmarks/device_overhead.py single_xla      # in an environment with core-xla, as are the next two
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=4 python benchmarks/device_overhead.py xla_spmd
    python benchmarks/device_overhead.py hpu_single      # where Gaudi devices are, or simulated ones

As `deepspeed_overhead.py`: one process, the contenders in turns, medians over the rounds of each
round's ratio. The device computes in other threads of the process, whose time counts too, and is
the same for all.
"""

import argparse
import importlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from step_overhead import OFF, Batches, Net, count_calls, cpu_us

from core import Fabric, Trainer

LIMIT = 60
"""Calls of a step over those of the loop by hand."""
Loop = Callable[[int], None]


def loop_of(
    device: str, place: Callable[[Any], Any], cut: Callable[[], None], wait: Callable[[], None]
) -> Loop:
    """The loop by hand: `cut` where the library's documentation has it, which is after each
    step.
    """

    def run(num_steps: int) -> None:
        module = Net().to(device)
        optimizer = module.configure_optimizers()
        for batch_idx, batch in enumerate(Batches(num_steps)):
            module.training_step(place(batch), batch_idx).backward()
            optimizer.step()
            optimizer.zero_grad()
            cut()
        wait()

    return run


def single_xla() -> Loop:
    torch_xla, model = (
        importlib.import_module("torch_xla"),
        importlib.import_module("torch_xla.core.xla_model"),
    )
    return loop_of("xla", lambda batch: batch.to("xla"), torch_xla.sync, model.wait_device_ops)


def xla_spmd() -> Loop:
    numpy, spmd = (
        importlib.import_module("numpy"),
        importlib.import_module("torch_xla.distributed.spmd"),
    )
    torch_xla, runtime = (
        importlib.import_module("torch_xla"),
        importlib.import_module("torch_xla.runtime"),
    )
    runtime.use_spmd()
    num_devices = runtime.global_runtime_device_count()
    mesh = spmd.Mesh(numpy.arange(num_devices), (num_devices,), ("data",))

    def place(batch: Any) -> Any:
        placed = batch.to("xla")
        spmd.mark_sharding(placed, mesh, ("data", None))
        return placed

    wait = importlib.import_module("torch_xla.core.xla_model").wait_device_ops
    return loop_of("xla", place, torch_xla.sync, wait)


def hpu_single() -> Loop:
    """Two cuts a step: after backward and after the optimizer."""
    library = importlib.import_module("habana_frameworks.torch.core")

    def run(num_steps: int) -> None:
        module = Net().to("hpu")
        optimizer = module.configure_optimizers()
        for batch_idx, batch in enumerate(Batches(num_steps)):
            module.training_step(batch.to("hpu"), batch_idx).backward()
            library.mark_step()
            optimizer.step()
            library.mark_step()
            optimizer.zero_grad()

    return run


FORMS = {
    "single_xla": ("xla", single_xla),
    "xla_spmd": ("xla", xla_spmd),
    "hpu_single": ("hpu", hpu_single),
}


def fabric_loop(**options: Any) -> Loop:
    def run(num_steps: int) -> None:
        fabric, module = Fabric(**options), Net()
        fabric.launch()
        model, optimizer = fabric.setup(module, module.configure_optimizers())
        for batch_idx, batch in enumerate(fabric.setup_dataloaders(Batches(num_steps))):
            fabric.backward(model.training_step(batch, batch_idx))
            optimizer.step()
            optimizer.zero_grad()
        fabric.teardown()

    return run


def trainer_loop(**options: Any) -> Loop:
    def run(num_steps: int) -> None:
        with tempfile.TemporaryDirectory() as root:
            Trainer(max_epochs=1, default_root_dir=root, **options, **OFF).fit(
                Net(), Batches(num_steps)
            )

    return run


def per_step(measure: Callable[[int], float], num_steps: int) -> float:
    """The slope between a short and a long run, which has no share of starting and ending."""
    few = num_steps // 10
    return (measure(num_steps) - measure(few)) / (num_steps - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("form", choices=[*FORMS])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.__future__.set_swap_module_params_on_conversion(True)
    accelerator, by_hand = FORMS[arguments.form]
    where = {
        "accelerator": accelerator,
        "strategy": arguments.form,
        "devices": -1 if "spmd" in arguments.form else 1,
    }
    # The loop by hand first: whatever the library counts once in a process, it counts as its
    # documentation says.
    runs = {"by hand": by_hand(), "Fabric": fabric_loop(**where), "Trainer": trainer_loop(**where)}
    for run in runs.values():
        run(20)
    calls = {name: per_step(count_calls(run), 100) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            times[name].append(per_step(cpu_us(run), arguments.steps))
    table = Table("on", "contender", "calls", "calls more", "limit", "µs CPU", "ratio")
    for name, own in times.items():
        more = calls[name] - calls["by hand"]
        ratio = statistics.median(
            time / base for time, base in zip(own, times["by hand"], strict=True)
        )
        figures = (
            f"{calls[name]:.1f}",
            f"{more:+.1f}",
            LIMIT,
            f"{statistics.median(own):.0f}",
            f"{ratio:.3f}",
        )
        table.add_row(arguments.form, name, *map(str, figures))
    Console().print(table)


if __name__ == "__main__":
    main()
