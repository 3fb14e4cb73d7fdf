"""Checkpoints: whole, exact, and the same under every strategy and number of processes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from core import Capability, CheckpointError, CheckpointNotFoundError, ShardedLeaf
from core.checkpoint import load_checkpoint
from core_testing.cases import ASSORTED, NOISY, RESUMED, Case
from core_testing.marks import needs, of_processes, of_trainer, unless
from core_testing.mixture import Mixture
from core_testing.networks import Perceptron, make_data, make_loader
from core_testing.strategy.base import StrategySuite
from core_testing.training import (
    Recorder,
    TrainingRecord,
    assert_equal_runs,
    assert_equal_tensors,
    reference,
    set_up,
    train,
)

if TYPE_CHECKING:
    from functools import partial
    from pathlib import Path

    from core_testing.ranks import Backend, Rank

_STOP_AT = 4


class ResumeTests(StrategySuite):
    """A run goes on from its own checkpoint."""

    @needs(Capability.BIT_EXACT_RESUME)
    @of_trainer
    def test_resume_is_bit_exact(self, folder: Path) -> None:
        """A run that goes on from the middle of an epoch equals one that was never stopped, noise
        included.
        """
        case, path = self.adapted(NOISY), folder / "noisy.ckpt"
        for whole, rest in zip(*self._stop_and_go_on(case, path, self.backend), strict=True):
            assert_equal_runs(rest, _rest_of(whole, rest), 0.0, with_moments=True)

    @of_trainer
    def test_resume_keeps_momentum_and_schedule(self, folder: Path) -> None:
        """The same without noise, within the tolerance: moments, learning rates and the order of
        the data go on.
        """
        case, path = self.adapted(RESUMED), folder / "resumed.ckpt"
        wholes, rests = self._stop_and_go_on(case, path, self.backend)
        self.assert_continues(rests[0], _rest_of(wholes[0], rests[0]))

    def _stop_and_go_on(
        self, case: Case, path: Path, backend: Backend
    ) -> tuple[list[TrainingRecord], list[TrainingRecord]]:
        wholes = backend.run(_train_and_save, case, path)
        # as the next process would
        return wholes, replace(backend, kept_for=None).run(_go_on, case, path)


class CheckpointTests(ResumeTests):
    """A checkpoint that `save_checkpoint` wrote brings a run back to its state, here and
    elsewhere.
    """

    @of_trainer
    def test_goes_on_under_one_device(self, folder: Path) -> None:
        """A checkpoint of this strategy loads under `single_device`, which goes on as if it had
        trained all along.
        """
        self._goes_on_under(self.one_device, folder / "to-one.ckpt")

    @of_trainer
    def test_goes_on_in_another_number_of_processes(self, folder: Path) -> None:
        """A checkpoint that all ranks saved loads on another number of ranks."""
        if self.other_num_processes is None or self.other_num_processes == self.num_processes:
            pytest.skip(f"{self.alias} is tested in one number of processes")
        other = self.backend_of(
            self.other_num_processes, min(self.shares, self.other_num_processes)
        )
        self._goes_on_under(other, folder / "to-other.ckpt")

    @of_trainer
    def test_goes_on_from_one_device(self, folder: Path) -> None:
        """A checkpoint of `single_device` loads under this strategy."""
        case, path = self.adapted(RESUMED), folder / "from-one.ckpt"
        self.one_device.run(_train_and_save, case, path)
        rest = self.run(_go_on, case, path)[0]
        self.assert_continues(
            rest, _rest_of(reference(case, self.reference_accelerator, self.shares), rest)
        )

    @unless(Capability.COMPILED_STEP)
    def test_every_part_comes_back(self, folder: Path) -> None:
        """Frozen weights, buffers, and the options of every parameter group are in a checkpoint,
        and come back.
        """
        case = self.adapted(ASSORTED)
        found = self.run(_save_and_lose, case, folder / "all.ckpt")
        expected = self.one_device.run(_save_and_lose, case, folder / "all-of-one.ckpt")[0]
        assert_equal_tensors(found[0].weights, expected.weights, self.tolerance)
        for run in found:
            assert run.learning_rates == expected.learning_rates

    def test_state_has_the_users_names(self) -> None:
        """A module's state has the names and shapes of the user's own `state_dict()`, without a
        wrapper's prefix.
        """
        for found in self.run(_names_and_shapes, self.adapted(Case("names"))):
            assert found["found"] == found["expected"] or found["rank"] != 0

    @unless(Capability.COMPILED_STEP)
    def test_optimizer_state_has_parameter_names(self) -> None:
        """An optimizer's state is keyed by the names of its parameters, group by group."""
        case = self.adapted(Case("names"))
        found = self.run(_optimizer_names, case)[0]
        expected = ["first.weight", "first.bias", "last.weight", "last.bias"]
        if case.num_experts:
            expected += [
                f"mixture.{name}" for name, _ in Mixture(case.num_experts).named_parameters()
            ]
        assert found["groups"] == [expected]
        assert sorted(found["state"]) == sorted(expected)

    @of_processes("ranks of unequal speed")
    def test_a_saved_checkpoint_is_complete(self, folder: Path) -> None:
        """The checkpoint is there and can be read as soon as `save_checkpoint` returns, on any
        rank.
        """
        assert all(
            self.run(_save_and_look, self.adapted(Case("complete")), folder / "complete.ckpt")
        )

    @of_trainer
    def test_saves_after_training(self, folder: Path) -> None:
        """After `fit` has returned on all ranks, `trainer.save_checkpoint` writes the weights that
        it has left.
        """
        case, path, weights_only = (
            self.adapted(RESUMED),
            folder / "late.ckpt",
            folder / "weights.ckpt",
        )
        run = self.run(_train_and_save_late, case, path, weights_only)[0]
        for each in (path, weights_only):
            assert_equal_tensors(load_checkpoint(each)["model"], run.weights, self.tolerance)

    def test_a_failing_save_is_raised_everywhere(self, folder: Path) -> None:
        """A save that can't succeed is a CheckpointError on all ranks, and leaves what was
        there.
        """
        assert all(self.run(_save_in_vain, self.adapted(Case("vain")), folder))

    def test_a_missing_checkpoint_is_said(self, folder: Path) -> None:
        """A path with nothing is a CheckpointNotFoundError on all ranks."""
        assert all(self.run(_load_nothing, self.adapted(Case("nothing")), folder / "nothing.ckpt"))

    def test_a_foreign_checkpoint_is_refused(self, folder: Path) -> None:
        """A state of another model is a CheckpointError on all ranks, that names what differs."""
        assert all(self.run(_load_foreign, self.adapted(Case("foreign")), folder / "foreign.ckpt"))

    def test_values_come_back(self, folder: Path) -> None:
        """Plain values beside the model come back on all ranks as they were on rank 0."""
        assert all(self.run(_save_values, self.adapted(Case("values")), folder / "values.ckpt"))

    def _goes_on_under(self, backend: Backend, path: Path) -> None:
        case = self.adapted(RESUMED)
        whole = self.run(_train_and_save, case, path)[0]
        rest = backend.run(_go_on, case, path)[0]
        self.assert_continues(rest, _rest_of(whole, rest))


def _rest_of(whole: TrainingRecord, rest: TrainingRecord) -> TrainingRecord:
    """The part of a run that another one has gone on with, after as many steps as were trained
    before.
    """
    missing = len(whole.losses) - len(rest.losses)
    assert missing == _STOP_AT, (
        f"the run went on with {len(rest.losses)} of {len(whole.losses)} steps"
    )
    return replace(
        whole, losses=whole.losses[missing:], learning_rates=whole.learning_rates[missing:]
    )


def _train_and_save(rank: Rank, case: Case, path: Path) -> TrainingRecord:
    return train(rank, case, save_at=_STOP_AT, path=path)


def _train_and_save_late(rank: Rank, case: Case, path: Path, weights_only: Path) -> TrainingRecord:
    recorder, module = Recorder(), case.network(case)
    trainer = rank.trainer(callbacks=recorder, max_steps=_STOP_AT, max_epochs=1)
    trainer.fit(module, make_loader(case, rank.backend.data_parallel_size))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*the optimizers are gone")
        trainer.save_checkpoint(path)
    trainer.save_checkpoint(weights_only, weights_only=True)
    return recorder.run


def _go_on(rank: Rank, case: Case, path: Path) -> TrainingRecord:
    torch.manual_seed(99 + rank.number)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9]+ ranks have saved what each keeps for itself")
        return train(rank, case, ckpt_path=path)


def _set_up(rank: Rank, case: Case, optimizer: partial[Any] | None = None) -> tuple[Any, Any, Any]:
    fabric, module = rank.fabric(), case.network(case)
    made = (optimizer or case.optimizer)(module)
    return fabric, module, set_up(fabric, module, made)


def _save_and_lose(rank: Rank, case: Case, path: Path) -> TrainingRecord:
    """Save, forget, and load: what is there then."""
    fabric, module = rank.fabric(), case.network(case)
    model, optimizer = fabric.setup(module, case.optimizer(module))
    state = {"model": model, "optimizer": optimizer}
    fabric.save(path, state)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.zero_()
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    fabric.load(path, state)
    run = TrainingRecord(learning_rates=[group["lr"] for group in optimizer.param_groups])
    run.take_state(fabric.strategy, module)
    run.optimizer = {}
    fabric.teardown()
    return run


def _names_and_shapes(rank: Rank, case: Case) -> dict[str, Any]:
    expected = {name: tuple(value.shape) for name, value in case.network(case).state_dict().items()}
    fabric, module, _ = _set_up(rank, case)
    state = fabric.strategy.get_module_state_dict(module)
    found = {name: _shape(value) for name, value in state.items()}
    fabric.teardown()
    return {"found": found, "expected": expected, "rank": rank.number}


def _shape(value: Any) -> tuple[int, ...]:
    return value.global_shape if isinstance(value, ShardedLeaf) else tuple(value.shape)


def _optimizer_names(rank: Rank, case: Case) -> dict[str, Any]:
    fabric, module = rank.fabric(), Perceptron(case)
    model, optimizer = fabric.setup(module, case.optimizer(module))
    parameter = next(module.parameters())
    inputs = torch.ones_like(make_data(case)[:2][0], dtype=parameter.dtype, device=fabric.device)
    fabric.backward(model(inputs).sum())
    optimizer.step()
    state = fabric.strategy.get_optimizer_state_dict(fabric.strategy.optimizers[0])
    fabric.teardown()
    return {
        "groups": [group["params"] for group in state["param_groups"]],
        "state": list(state["state"]),
    }


def _save_and_look(rank: Rank, case: Case, path: Path) -> bool:
    fabric, module, _ = _set_up(rank, case)
    # Large enough for a rank that doesn't wait to see nothing yet.
    fabric.save(path, {"model": module, "ballast": torch.zeros(2_000_000)})
    assert fabric.strategy.checkpoint_io.exists(path), (
        "this rank has returned before the checkpoint was there"
    )
    assert "model" in fabric.load(path)
    fabric.teardown()
    return True


def _save_in_vain(rank: Rank, case: Case, folder: Path) -> bool:
    fabric, module, _ = _set_up(rank, case)
    path = folder / "kept.ckpt"
    fabric.save(path, {"model": module, "number": 1})
    with pytest.raises(CheckpointError):
        fabric.save(path, {"model": module, "number": lambda: None})
    state = {"model": module, "number": 0}
    fabric.load(path, state)
    assert state["number"] == 1
    fabric.teardown()
    return True


def _load_nothing(rank: Rank, case: Case, path: Path) -> bool:
    fabric, module, _ = _set_up(rank, case)
    with pytest.raises(CheckpointNotFoundError):
        fabric.load(path, {"model": module})
    fabric.teardown()
    return True


def _load_foreign(rank: Rank, case: Case, path: Path) -> bool:
    fabric, module, _ = _set_up(rank, case)
    fabric.save(path, {"model": module})
    fabric.teardown()
    other = rank.fabric()
    stranger: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(case.dtype)
    # it has no experts, and isn't cut
    stranger.expert_parallel_plan, stranger.tensor_parallel_plan = (), {}
    set_up(other, stranger, torch.optim.SGD(stranger.parameters(), lr=0.1))
    with pytest.raises(CheckpointError, match=r"weight"):
        other.load(path, {"model": stranger})
    other.teardown()
    return True


def _save_values(rank: Rank, case: Case, path: Path) -> bool:
    fabric, module, _ = _set_up(rank, case)
    values = {
        "epoch": 3,
        "names": ["a", None],
        "tensor": torch.arange(3),
        "rank": fabric.global_rank,
    }
    fabric.save(path, {"model": module, **values})
    state: dict[str, Any] = {"model": module, **dict.fromkeys(values)}
    fabric.load(path, state)
    assert state["epoch"] == 3
    assert state["names"] == ["a", None]
    assert state["tensor"].tolist() == [0, 1, 2]
    assert state["rank"] == 0
    fabric.teardown()
    return True
