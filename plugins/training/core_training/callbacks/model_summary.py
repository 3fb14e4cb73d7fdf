"""A table of the model when training begins."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from core.contract import Capability
from core_training.callbacks.layer_summary import ModuleSummary, count_here, summarize
from core_training.hooks.callback import Callback
from core_training.settings.callback_arguments import check_int
from core_training.state.kept_random_state import random_state_kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from core_training.views.trainer_views import TrainerViews

_NUMERIC = ("", "params", "FLOPs")
_UNITS = "KMBTP"


class ModelSummary(Callback):
    """Prints layers, parameters, sizes and units (`core.strategies.find_units`) on rank 0 when fit
    begins.

    With `example_input_array` on the module (a tensor, a tuple of arguments, or a dict of them),
    also the shapes that go in and out of each layer, and the floating-point operations of one
    forward, by torch's counter. All ranks run it.
    """

    def __init__(self, max_depth: int = 1) -> None:
        """Create the callback.

        Args:
            max_depth: levels of children that get a row; 0 prints totals only, -1 all levels.

        Raises:
            ConfigurationError: less than -1.
        """
        meaning = "0 or more, or -1 for all levels"
        check_int("ModelSummary", "max_depth", max_depth, least=-1, meaning=meaning)
        self.max_depth = max_depth

    def on_fit_start(self, trainer: TrainerViews, module: nn.Module) -> None:
        """Look at the model and print the table."""
        run_example = _make_example(trainer, module)
        count = _make_count(trainer.strategy, module)
        # The forward of an example may be collective: with one, all ranks go on.
        if run_example is None and not trainer.is_global_zero:
            return
        summary = summarize(module, self.max_depth, run_example, count)
        trainer.print(to_text(summary))


def _make_count(strategy: Any, module: nn.Module) -> Callable[[nn.Parameter], int]:
    """All ranks. Counts the elements of whole parameters, also where ranks hold parts, or nothing
    between two uses.
    """
    if Capability.SHARDED_STATE not in strategy.capabilities:
        return count_here
    state = strategy.get_module_state_dict(module, layout="sharded")
    sizes = {}
    for name, parameter in module.named_parameters():
        if hasattr(state.get(name), "numel"):
            sizes[id(parameter)] = int(state[name].numel())
    return lambda parameter: sizes.get(id(parameter)) or count_here(parameter)


def _make_example(trainer: TrainerViews, module: nn.Module) -> Callable[[], object] | None:
    """Runs the module's example, on the device and in the precision of the run; None if there is
    none.
    """
    strategy = trainer.strategy
    with random_state_kept(strategy):  # it may be a property that draws
        example = getattr(module, "example_input_array", None)
    if example is None:
        return None
    transfer = trainer.make_transfer() or (lambda batch: batch)

    def run() -> None:
        with random_state_kept(strategy), strategy.forward_context() or nullcontext():
            batch = transfer(example)
            if isinstance(batch, Mapping):
                module(**batch)
            elif isinstance(batch, tuple):
                module(*batch)
            else:
                module(batch)

    return run


def to_text(summary: ModuleSummary) -> str:
    """The table and its totals, as plain text."""
    rows = _rows(summary)
    if len(rows) == 1:
        return "\n".join(_totals(summary))
    columns = []
    for name, *cells in zip(*rows, strict=True):
        side = ">" if name in _NUMERIC else "<"
        columns.append(f"{{:{side}{max(map(len, (name, *cells)))}}}")
    lines = ["  ".join(columns).format(*row).rstrip() for row in rows]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:], rule, *_totals(summary)])


def _rows(summary: ModuleSummary) -> list[list[str]]:
    """The header, and a row for each layer."""
    rows = [["", "name", "type", "params", "mode"]]
    if summary.flops is not None:
        rows[0] += ["FLOPs", "in", "out"]
    for index, layer in enumerate(summary.layers):
        mode = "eval"
        if layer.trains:
            mode = "train"
        name = layer.name or "(its own)"
        row = [str(index), name, layer.kind, shorten(layer.num_parameters), mode]
        if summary.flops is not None:
            sizes = [str(layer.in_size or "-"), str(layer.out_size or "-")]
            row += [shorten(layer.flops or 0), *sizes]
        rows.append(row)
    return rows


def _totals(summary: ModuleSummary) -> list[str]:
    totals = [
        (shorten(summary.num_trainable), "trainable parameters"),
        (shorten(summary.num_frozen), "frozen parameters"),
        (shorten(summary.size_bytes, "B"), "of memory for them"),
        (str(summary.num_modules), "modules"),
    ]
    if summary.flops is not None:
        totals.append(
            (shorten(summary.flops), "floating-point operations in a forward of the example")
        )
    lines = [f"{number:<10}{meaning}" for number, meaning in totals]
    if summary.units:
        lines.append(f"units: {summary.units}")
    if summary.has_lazy:
        lines.append("Lazy layers are not counted: they take their shape from the first batch.")
    return lines


def shorten(number: int, unit_name: str = "") -> str:
    """A number of at most three digits before the point: 1,234,567 is `1.2 M`."""
    if number < 1000:
        return f"{number} {unit_name}".rstrip()
    power = min((len(str(number)) - 1) // 3, len(_UNITS))
    return f"{number / 1000**power:.1f} {_UNITS[power - 1]}{unit_name}"
