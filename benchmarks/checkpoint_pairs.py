"""Every pair of configurations: one writes a checkpoint, and the other goes on from it.

    python benchmarks/checkpoint_pairs.py [--processes 4] [--write benchmarks/checkpoint_pairs.md] [CONFIGURATION ...]

With `tests` on PYTHONPATH: `tests/checkpoint/test_portability.py` runs some of the pairs in the
same way.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

from core import STRATEGY_REGISTRY
from core.checkpoint import load_checkpoint
from support.portability import (
    FORK,
    GLOBAL_BATCH,
    SINGLE_DEVICE,
    Configuration,
    read_all,
    run_matrix,
)

MARKS = ("<!-- matrix: begin -->\n", "<!-- matrix: end -->\n")
ALL = [
    SINGLE_DEVICE,
    *(Configuration("ddp", size, options=FORK) for size in (1, 2, 4)),
    *(Configuration("fsdp", size, options=FORK) for size in (1, 2, 4)),
    *(
        Configuration(
            "fsdp",
            size,
            "hybrid",
            options={**FORK, "sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, size // 2)},
        )
        for size in (2, 4)
    ),
    *(
        Configuration(
            "model_parallel", size, "fsdp+tp", options={**FORK, "tensor_parallel_size": 2}
        )
        for size in (2, 4)
    ),
    *(Configuration("ddp", size, "ddp-bf16", "bf16-mixed", FORK) for size in (1, 2, 4)),
]
# By name only: they aren't in the page's table.
OTHERS = [
    *(
        Configuration(strategy, 2, options=FORK)
        for strategy in ("ddp_sharded", "bagua", "colossalai", "horovod")
    ),
    # One peer: those of a swarm share no global batch.
    Configuration(
        "hivemind", options={"target_batch_size": GLOBAL_BATCH, "batch_size": GLOBAL_BATCH}
    ),
]


def configurations(num_processes, among=ALL):
    """Those that can run here, with at most so many processes."""
    return [
        each
        for each in among
        if each.strategy in STRATEGY_REGISTRY and each.num_processes <= num_processes
    ]


def restore_by_hand(fabric, path, state):
    """With torch alone, where modules and optimizers are torch's own."""
    saved = load_checkpoint(path)
    module, optimizer = state["model"].module, state["optimizer"].optimizer
    module.load_state_dict(saved["model"])
    parameters = dict(module.named_parameters())
    for name, entry in saved["optimizer"]["state"].items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            key: value.to(parameter.dtype if value.dim() else value.dtype, copy=True)
            for key, value in entry.items()
        }
    for group, other in zip(
        optimizer.param_groups, saved["optimizer"]["param_groups"], strict=True
    ):
        group.update({key: value for key, value in other.items() if key != "params"})
    state["scheduler"].load_state_dict(saved["scheduler"])
    state["step"] = saved["step"]


def losses_after_a_change_of_precision(reader, paths):
    """Where it changes, the run in the reader's precision from the same state, restored by hand."""
    changed = [
        path
        for writer, path in paths.items()
        if writer.precision != reader.precision or not reader.is_exact
    ]
    return (
        read_all(SINGLE_DEVICE if reader.is_exact else reader, changed, restore_by_hand)
        if changed
        else {}
    )


def text_of(cell):
    text = "equal" if cell.difference == 0 else f"{cell.difference:.0e}"
    return text if cell.is_good else f"**{text}**"


def markdown(cells):
    """Writers below each other, readers side by side."""
    readers = list(dict.fromkeys(reader for _, reader in cells))
    lines = [f"| written under | {' | '.join(readers)} |", "| --- " * (len(readers) + 1) + "|"]
    for writer in dict.fromkeys(writer for writer, _ in cells):
        lines.append(
            f"| {writer} | {' | '.join(text_of(cells[writer, reader]) for reader in readers)} |"
        )
    return "\n".join(lines) + "\n"


def with_table(page, table):
    """A page with a new table between the marks."""
    before, _, rest = page.partition(MARKS[0])
    return before + MARKS[0] + table + MARKS[1] + rest.partition(MARKS[1])[2]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="CONFIGURATION")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    among = (
        [each for each in (*ALL, *OTHERS) if each.name in arguments.names]
        if arguments.names
        else ALL
    )
    chosen = configurations(arguments.processes, among)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        table = markdown(run_matrix(chosen, Path(folder), losses_after_a_change_of_precision))
    print(table)
    if arguments.write:
        arguments.write.write_text(with_table(arguments.write.read_text(), table))


if __name__ == "__main__":
    main()
