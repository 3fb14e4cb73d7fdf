"""Trains one case on one rank, and says all that can be compared afterwards."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from core import Capability, ShardedLeaf
from core.checkpoint import gather_whole
from core_testing.networks import make_loader
from core_testing.ranks import Rank, one_device
from core_testing.trainer_names import Callback

if TYPE_CHECKING:
    from os import PathLike

    from torch import nn
    from torch.optim import Optimizer

    from core import Fabric, Module, Strategy
    from core_testing.cases import Case


@dataclass(slots=True)
class TrainingRecord:
    """The observations of one rank in a run.

    Attributes:
        losses: of every step, averaged over ranks.
        weights: by name, at the end; whole on rank 0.
        optimizer: its state by parameter names, at the end; whole on rank 0.
        num_steps: number of updates of the parameters, as the core counts them.
        learning_rates: of the first group, after every step.
        formats: dtypes that the first layer has computed in.
    """

    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    num_steps: int = 0
    learning_rates: list[float] = field(default_factory=list)
    formats: set[torch.dtype] = field(default_factory=set)

    def by_windows(self, size: int) -> TrainingRecord:
        """The same run as it is seen by windows of so many batches, which a compiled step takes as
        one.
        """
        windows = [self.losses[start : start + size] for start in range(0, len(self.losses), size)]
        return replace(
            self,
            losses=list(map(fmean, windows)),
            learning_rates=self.learning_rates[size - 1 :: size],
        )

    def take_state(self, strategy: Strategy, module: Any) -> None:
        """All ranks. Copy what the strategy says of module and optimizer."""
        state = strategy.get_module_state_dict(module)
        self.weights = {
            name: whole(value, strategy) for name, value in state.items() if _is_tensor(value)
        }
        self.formats = set(getattr(module, "formats", ()))
        if strategy.optimizers:
            named = strategy.get_optimizer_state_dict(strategy.optimizers[0])
            self.optimizer = {
                name: {
                    key: whole(value, strategy) for key, value in entry.items() if _is_tensor(value)
                }
                # a rank may have nothing of a whole one
                for name, entry in named.get("state", {}).items()
            }


class Recorder(Callback):
    """Fills a `TrainingRecord`, and saves a checkpoint on the way.

    Args:
        save_at: number of steps after which a checkpoint is saved.
        path: where.
    """

    def __init__(self, save_at: int = -1, path: str | PathLike[str] | None = None) -> None:
        self.run = TrainingRecord()
        self.save_at, self.path = save_at, path

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the loss."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.run.losses.append(mean_over_ranks(trainer.strategy, loss))
        self.run.learning_rates.append(trainer.strategy.optimizers[0].param_groups[0]["lr"])
        if trainer.global_step == self.save_at and self.path is not None:
            trainer.save_checkpoint(self.path)
            self.path = None

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Note the state."""
        self.run.num_steps = trainer.global_step
        self.run.take_state(trainer.strategy, module)


def mean_over_ranks(strategy: Strategy, loss: Tensor) -> float:
    """All ranks. A scalar averaged, as far as the ranks are connected."""
    connected = Capability.COLLECTIVES in strategy.capabilities
    return float(strategy.reduce(loss.detach()) if connected else loss.detach())


def train(
    rank: Rank,
    case: Case,
    *,
    strategy: Strategy | str | None = None,
    num_copies: int = 1,
    **options: Any,
) -> TrainingRecord:
    """All ranks. Train one case to its end.

    Args:
        rank: this process.
        case: what to train.
        strategy: another one than the backend's.
        num_copies: see `networks.make_data`.
        options: `save_at` and `path` for a checkpoint on the way, `ckpt_path` to go on from one,
            `max_steps`.
    """
    module = case.network(case)
    if case.begins_apart:
        _move_apart(module, rank.number)
    # the order of the data follows from rank 0's, the noise from each rank's own
    torch.manual_seed(13 + rank.number)
    if case.loop == "fabric":
        return _train_by_hand(
            rank.fabric(strategy, precision=case.precision),
            case,
            module,
            rank.backend.data_parallel_size,
        )
    recorder = Recorder(options.pop("save_at", -1), options.pop("path", None))
    ckpt_path = options.pop("ckpt_path", None)
    trainer = rank.trainer(
        strategy,
        callbacks=recorder,
        precision=case.precision,
        accumulate_grad_batches=case.accumulate,
        gradient_clip_val=case.clip,
        gradient_clip_algorithm=case.clip_algorithm if case.clip is not None else None,
        **{"max_epochs": case.num_epochs, **options},
    )
    trainer.fit(
        module, make_loader(case, rank.backend.data_parallel_size, num_copies), ckpt_path=ckpt_path
    )
    return recorder.run


def set_up(fabric: Fabric, module: nn.Module, optimizer: Optimizer) -> Any:
    """The module, set up together with its optimizer where a loop by hand may train it."""
    if Capability.COMPILED_STEP in fabric.strategy.capabilities:
        return fabric.setup(module)
    return fabric.setup(module, optimizer)[0]


def _move_apart(module: Module, number: int) -> None:
    """Change weights and buffers as if each rank had drawn its own. Those of rank 0 stay."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(number)


def _train_by_hand(
    fabric: Fabric, case: Case, module: Module, data_parallel_size: int
) -> TrainingRecord:
    run = TrainingRecord()
    model, optimizer = fabric.setup(module, case.optimizer(module))
    loader = fabric.setup_dataloaders(make_loader(case, data_parallel_size))
    for _ in range(case.num_epochs):
        for batch_idx, (inputs, targets) in enumerate(loader):
            ends_window = (batch_idx + 1) % case.accumulate == 0
            with fabric.no_backward_sync(model, enabled=not ends_window):
                loss = functional.mse_loss(model(inputs), targets)
                fabric.backward(loss / case.accumulate)
            if ends_window:
                if case.clip is not None:
                    fabric.clip_gradients(model, optimizer, max_norm=case.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=case.set_to_none)
                run.num_steps += 1
            run.losses.append(mean_over_ranks(fabric.strategy, loss))
    run.take_state(fabric.strategy, module)
    fabric.teardown()
    return run


@functools.cache
def reference(case: Case, accelerator: str, num_copies: int) -> TrainingRecord:
    """The run of a case on one device, on whole batches."""
    run: TrainingRecord = one_device(accelerator).run(
        functools.partial(train, num_copies=num_copies), case
    )[0]
    return run


def assert_equal_runs(
    run: TrainingRecord, expected: TrainingRecord, tolerance: float, *, with_moments: bool = False
) -> None:
    """Compare rank 0's run with the expected one, step by step.

    Args:
        run: of rank 0.
        expected: of one device.
        tolerance: relative to the largest loss or weight; 0 for bit for bit.
        with_moments: compare the optimizer's state too.
    """
    assert_close_losses(run, expected, tolerance)
    assert_equal_tensors(run.weights, expected.weights, tolerance)
    if with_moments:
        for name, entry in expected.optimizer.items():
            assert_equal_tensors(run.optimizer[name], entry, tolerance)


def assert_close_losses(run: TrainingRecord, expected: TrainingRecord, tolerance: float) -> None:
    """Compare the losses of rank 0's run with the expected ones, step by step, and what doesn't
    depend on them.

    Args:
        run: of rank 0.
        expected: of one device.
        tolerance: relative to the largest loss.
    """
    assert run.num_steps == expected.num_steps, "number of optimizer steps"
    assert len(run.losses) == len(expected.losses), "number of batches"
    # Relative to the largest loss, not to each: near zero, rounding alone is a large part of a
    # value.
    scale = max(map(abs, expected.losses))
    distances = [
        abs(loss - wanted) for loss, wanted in zip(run.losses, expected.losses, strict=True)
    ]
    for step, distance in enumerate(distances):
        assert distance <= tolerance * scale, (
            f"loss of step {step}: {run.losses[step]}, expected {expected.losses[step]}; in all "
            f"steps {_as_part(max(distances), scale)} of the largest loss at most, where "
            f"{tolerance:g} is allowed"
        )
    assert run.learning_rates == expected.learning_rates


def assert_equal_tensors(
    found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
) -> None:
    """Compare tensors by name, relative to the largest value of all."""
    assert sorted(found) == sorted(expected), "names"
    scale = max(
        (float(value.abs().max()) for value in expected.values() if value.is_floating_point()),
        default=1.0,
    )
    for name, wanted in expected.items():
        distance = (
            float((found[name].double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
        )
        assert distance <= tolerance * scale, (
            f"{name} is off by {distance:g}: {_as_part(distance, scale)} of the largest value, "
            f"where {tolerance:g} is allowed"
        )


def _as_part(distance: float, scale: float) -> str:
    return f"{distance / scale:.3g}" if scale else "inf"


def whole(value: Any, strategy: Strategy) -> Tensor:
    """All ranks. A copy on the CPU, put together from its shards if it has some."""
    if isinstance(value, ShardedLeaf):
        total = torch.zeros(value.global_shape, dtype=value.dtype, device=strategy.root_device)
        value = value.gather(total, functools.partial(strategy.reduce, reduce_op="sum"))
    full: Tensor = gather_whole(value) if hasattr(value, "full_tensor") else value
    return full.detach().cpu().clone()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor | ShardedLeaf)
