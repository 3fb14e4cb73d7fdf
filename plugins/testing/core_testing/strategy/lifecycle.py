"""A strategy's life: from its making to its teardown, again and again, and after an exception."""

from __future__ import annotations

import functools
import gc
import pickle
import shutil
from typing import Any

import pytest
import torch

from core import Capability, Strategy
from core_testing.cases import Case
from core_testing.footprint import Footprint
from core_testing.marks import of_processes, of_trainer
from core_testing.networks import Perceptron, make_loader
from core_testing.ranks import Rank, own_temporary_folder
from core_testing.strategy.base import StrategySuite
from core_testing.training import reference, train

_CASE = Case("life")
_ORDER = (
    "setup_environment",
    "setup",
    "init_context",
    "setup_module",
    "setup_optimizer",
    "setup_dataloader",
    "run_training_step",
    "teardown",
)
_LEFT_BEHIND = tuple(Footprint.__dataclass_fields__)


class LifecycleTests(StrategySuite):
    """The call sequence of `core.Strategy`, and what is left of it."""

    def test_declares_what_it_is_pinned_to(self) -> None:
        """The capabilities are those that the suite's author expects."""
        if self.expected_capabilities is None:
            pytest.skip(f"expected_capabilities of {type(self).__name__} is open")
        declared, pinned = self.declared(), self.expected_capabilities
        missing, more = pinned & ~declared, declared & ~pinned
        assert declared == pinned, (
            f"pinned and not declared: {missing.name}; declared and not pinned: {more.name}"
        )

    def test_pickles(self) -> None:
        """A new instance crosses a process boundary, and comes out with the same capabilities."""
        assert self.alone(lambda: _copy_is_like(self.make()))

    @of_processes("what a rank has of its own")
    def test_making_it_starts_nothing(self) -> None:
        """To make and resolve a strategy joins no group, starts no process or thread, sets no
        variable.
        """
        for rank, found in enumerate(self.run_in_new_processes(_footprint_of_making)):
            assert not found, f"to make it on rank {rank} has begun {found}"

    @of_trainer
    def test_calls_come_in_order(self) -> None:
        """Environment, then module, then optimizers, then loaders, then steps, then teardown: each
        on all ranks.
        """
        joint = Capability.JOINT_SETUP in self.declared()
        expected = [_joint_name(name) if joint else name for name in _ORDER]
        expected = list(dict.fromkeys(expected))
        for calls in self.run(_calls_of_a_run, self._case):
            assert [name for name in calls if name in expected] == expected

    def test_ranks_and_sizes_are_right(self) -> None:
        """After `setup_environment`, processes, devices and shares of the data are counted and
        numbered.
        """
        found = self.run(_ranks_and_sizes)
        connected = Capability.COLLECTIVES in self.declared()
        size = self.num_processes if connected else 1
        assert [place["world_size"] for place in found] == [size] * len(found)
        assert (
            [place["global_rank"] for place in found] == list(range(len(found)))
            if connected
            else [0]
        )
        assert [place["is_global_zero"] for place in found].count(True) == (
            1 if connected else len(found)
        )
        assert {place["num_devices"] for place in found} == {self.num_devices or self.num_processes}
        assert {place["data_parallel_size"] for place in found} == {self.shares if connected else 1}
        shares = {place["data_parallel_rank"] for place in found}
        assert shares == set(range(self.shares if connected else 1))

    def test_models_are_built_on_the_device(self) -> None:
        """Inside `init_context`, a new module is on the rank's device, or on `meta` until it is set
        up.
        """
        assert all(self.run(_builds_on_the_device))

    @of_processes("what a rank has of its own")
    def test_runs_twice_in_one_process(self) -> None:
        """A second strategy, in the same processes, trains as the first did."""
        for first, second in self.run_in_new_processes(_train_twice, self._case, False):
            self.assert_repeats(second, first)

    def test_the_same_instance_runs_twice(self) -> None:
        """One instance, given to a second Trainer, trains as it did before."""
        for first, second in self.run_in_new_processes(_train_twice, self._case, True):
            self.assert_repeats(second, first)

    @of_trainer
    def test_runs_after_an_exception(self) -> None:
        """After a run that ended by an exception, the next one in these processes is as if nothing
        had been.
        """
        runs = self.run_in_new_processes(_train_after_an_exception, self._case)
        self.assert_like_one_device(
            runs[0], reference(self._case, self.reference_accelerator, self.shares)
        )

    @of_trainer
    def test_an_exception_arrives_unchanged(self) -> None:
        """An exception of the user's step reaches the user, as the same object."""
        assert all(self.run(_raised_is_caught, self._case))

    def test_teardown_is_idempotent(self) -> None:
        """A second teardown does nothing, and so does one before any set-up."""
        assert all(self.run(_tear_down_again, self._case))

    def test_teardown_forgets_modules(self) -> None:
        """After teardown the strategy holds no module and no optimizer, so that their memory is
        free.
        """
        assert all(self.run(_forgets_modules, self._case))

    @of_processes("what a rank has of its own")
    @pytest.mark.parametrize("kind", _LEFT_BEHIND)
    def test_teardown_leaves_nothing(self, kind: str) -> None:
        """After teardown there is no more than before: no group, process, thread, port, variable,
        temporary file.
        """
        for rank, left in enumerate(self._left_behind()):
            assert not left[kind], f"rank {rank} has left {kind}: {left[kind]}"

    @property
    def _case(self) -> Case:
        return self.adapted(_CASE)

    def _left_behind(self) -> list[dict[str, list[str]]]:
        return _left_behind_by(type(self))  # type: ignore[arg-type]  # mypy: classes have no hash


@functools.cache
def _left_behind_by(suite: type[LifecycleTests]) -> list[dict[str, list[str]]]:
    """One run of the ranks answers for all kinds."""
    return suite().backend.run(_footprint_of_a_life, suite().adapted(_CASE))


def _copy_is_like(strategy: Strategy) -> bool:
    copy = pickle.loads(pickle.dumps(strategy))
    assert type(copy) is type(strategy)
    assert copy.capabilities == strategy.capabilities
    return True


def _joint_name(name: str) -> str:
    return "setup_module_and_optimizers" if name in ("setup_module", "setup_optimizer") else name


def _footprint_of_making(rank: Rank) -> dict[str, list[str]]:
    folder = own_temporary_folder()
    before = Footprint.take(folder)
    rank.fabric()
    after = Footprint.take(folder)
    folder.rmdir()
    found = {kind: after.beyond(before, kind) for kind in _LEFT_BEHIND}
    return {kind: left for kind, left in found.items() if left}


def _footprint_of_a_life(rank: Rank, case: Case) -> dict[str, list[str]]:
    """The resources that runs leave open, by kind. Those opened once a process, such as the groups'
    store, may stay.
    """
    folder = own_temporary_folder()
    before = Footprint.take(folder)
    train(rank, case, max_epochs=1)
    gc.collect()  # a group without references closes its ports when it is collected
    first = Footprint.take(folder)
    train(rank, case, max_epochs=1)
    gc.collect()
    second = Footprint.take(folder)
    shutil.rmtree(folder)
    once = {kind: second.beyond(before, kind) for kind in _LEFT_BEHIND if kind != "ports"}
    return {**once, "ports": second.beyond(first, "ports")}


def _calls_of_a_run(rank: Rank, case: Case) -> list[str]:
    strategy = rank.backend.strategy()
    calls: list[str] = []
    assert isinstance(strategy, Strategy)
    _record(strategy, calls)
    trainer = rank.trainer(strategy, max_epochs=1)
    trainer.fit(Perceptron(case), make_loader(case, rank.backend.data_parallel_size))
    return list(dict.fromkeys(calls))


def _record(strategy: Strategy, calls: list[str]) -> None:
    """Note the calls of contract methods, the first of each."""
    kind = type(strategy)

    def noted(name: str) -> Any:
        method = getattr(kind, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return method(self, *args, **kwargs)

        return call

    names = {name for name in (*_ORDER, "setup_module_and_optimizers") if hasattr(kind, name)}
    strategy.__class__ = type(kind.__name__, (kind,), {name: noted(name) for name in names})


def _ranks_and_sizes(rank: Rank) -> dict[str, Any]:
    fabric = rank.fabric()
    fabric.barrier()  # its first use sets it up
    strategy = fabric.strategy
    names = (
        "world_size",
        "global_rank",
        "is_global_zero",
        "num_devices",
        "data_parallel_size",
        "data_parallel_rank",
    )
    place = {name: getattr(strategy, name) for name in names}
    assert strategy.local_rank == rank.number or strategy.world_size == 1
    assert strategy.node_rank == 0
    fabric.teardown()
    return place


def _builds_on_the_device(rank: Rank) -> bool:
    fabric = rank.fabric()
    with fabric.init_module():
        module = torch.nn.Linear(3, 3)
    places = {fabric.device.type, "meta"}
    # the whole may be too large for one device
    if Capability.SHARDED_STATE in fabric.strategy.capabilities:
        places.add("cpu")
    assert module.weight.device.type in places
    fabric.teardown()
    return True


def _train_twice(rank: Rank, case: Case, same: bool) -> tuple[Any, Any]:
    strategy = rank.backend.strategy() if same else None
    return train(rank, case, strategy=strategy), train(rank, case, strategy=strategy)


class _OwnError(Exception):
    """The exception that the user's step raises."""


class _Failing(Perceptron):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise _OwnError("the user's step fails")
        return super().training_step(batch, batch_idx)


def _fail(rank: Rank, case: Case) -> _OwnError | None:
    trainer = rank.trainer(max_epochs=1)
    try:
        trainer.fit(_Failing(case), make_loader(case, rank.backend.data_parallel_size))
    except _OwnError as error:
        return error
    return None


def _train_after_an_exception(rank: Rank, case: Case) -> Any:
    _fail(rank, case)
    return train(rank, case)


def _raised_is_caught(rank: Rank, case: Case) -> bool:
    error = _fail(rank, case)
    assert error is not None, "the exception of the user's step was swallowed"
    assert error.args == ("the user's step fails",)
    return True


def _tear_down_again(rank: Rank, case: Case) -> bool:
    strategy = rank.backend.strategy()
    assert isinstance(strategy, Strategy)
    rank.fabric(strategy)
    strategy.teardown()
    train(rank, case, strategy=strategy, max_epochs=1)
    strategy.teardown()
    strategy.teardown()
    return True


def _forgets_modules(rank: Rank, case: Case) -> bool:
    strategy = rank.backend.strategy()
    assert isinstance(strategy, Strategy)
    train(rank, case, strategy=strategy, max_epochs=1)
    assert strategy.session.handles == []
    assert strategy.optimizers == []
    assert getattr(strategy, "model", None) is None
    return True
