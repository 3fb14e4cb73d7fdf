"""Flipped bits are found, the right rank is named, and healthy runs are left alone."""

from functools import partial

import pytest
import torch
from disturbed_runs import Apart
from torch import nn
from torch.utils.data import DataLoader

from core import ConfigurationError, Module, UnsupportedError
from core.callbacks import Callback, VerifyReplicas
from core_parallel import MeshParallelStrategy
from core_resilience import Difference, ReplicasDifferError
from core_testing import Backend
from support.flips import flip
from support.tiny import Tiny, loader, make_trainer

TWO = Backend(lambda: "ddp", num_processes=2, in_process=True)
THREE = Backend(lambda: "ddp", num_processes=3, in_process=True)


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.register_buffer("table", torch.arange(6.0))
        self.register_buffer("seen", torch.zeros(1))

    def training_step(self, batch):
        self.seen += batch.sum()  # of this rank's batches
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Flip(Callback):
    """Flips bits of one rank at steps: (step, rank, kind, bit); kind is a parameter, moment or
    buffer.
    """

    def __init__(self, *flips):
        self.flips = flips

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        for step, rank, kind, bit in self.flips:
            if step == trainer.global_step and rank == trainer.strategy.global_rank:
                weight = module.net[2].weight
                moments = trainer.strategy.optimizers[0].state[weight]
                tensor = {"weight": weight, "moment": moments["exp_avg_sq"], "table": module.table}[
                    kind
                ]
                tensor = getattr(tensor, "to_local", tensor.detach)()
                flip(tensor, bit % tensor.numel(), bit % 32)


def fit(rank, flips, num_batches, every=2, ignore=("seen",), **options):
    verify = VerifyReplicas(every, ignore=ignore, **options)
    data = torch.randn(
        2 * num_batches * rank.backend.num_processes, 4, generator=torch.Generator().manual_seed(3)
    )
    trainer = rank.trainer(max_epochs=1, callbacks=[Flip(*flips), verify])
    error = None
    try:
        trainer.fit(Net(), DataLoader(data, batch_size=2))
    except ReplicasDifferError as raised:
        error = raised
    return verify.differences, trainer.global_step, error and (str(error), error.difference)


WORDS = {
    "weight": "the parameter 'net.2.weight'",
    "moment": "'exp_avg_sq' of Adam for 'net.2.weight'",
    "table": "the buffer 'table'",
}


@pytest.mark.parametrize("kind", WORDS)
def test_the_rank_that_differs_is_named_and_the_run_ends(kind):
    for differences, steps, error in THREE.run(
        fit, [(3 if kind == "weight" else 4, 1, kind, 7)], 6
    ):
        difference = Difference(4, (1,), True, WORDS[kind])
        assert (differences, steps, error[1]) == ([difference], 4, difference)
        begin = (
            "After step 4 rank 1 differs from the other ranks; the first tensor that isn't "
            f"alike is {WORDS[kind]}."
        )
        assert error[0].startswith(begin)


def test_of_two_ranks_both_are_named():
    for found in TWO.run(fit, [(4, 1, "moment", 3)], 6):
        assert found[0] == [Difference(4, (0, 1), False, WORDS["moment"])]
        assert (
            "ranks 0, 1 differ from each other, and no majority says which of them is right"
            in found[2][0]
        )


def test_a_run_goes_on_with_one_warning_of_each_difference():
    # DDP gives rank 0's buffers to all before each forward, and never its parameters.
    warning = partial(fit, every=1, on_difference="warn")
    table = Difference(3, (1,), True, WORDS["table"])
    weights = [Difference(step, (2,), True, WORDS["weight"]) for step in (4, 5, 6)]
    with pytest.warns(UserWarning, match="VerifyReplicas") as warned:
        found = THREE.run(warning, [(3, 1, "table", 3), (4, 2, "weight", 3)], 6)
    assert found == 3 * [([table, *weights], 6, None)]
    texts = [str(each.message) for each in warned if "VerifyReplicas" in str(each.message)]
    assert texts == [f"VerifyReplicas: {each} The run goes on." for each in (table, weights[0])]


def test_a_healthy_run_is_left_alone():
    """Its batch norms differ between ranks, and its own counter is ignored; unless that is
    forgotten.
    """
    for found in TWO.run(partial(fit, every=1, ignore=("se*",)), [], 6):
        assert found == ([], 6, None)
    for differences, _, _ in TWO.run(partial(fit, every=1, ignore=()), [], 6):
        assert differences == [Difference(1, (0, 1), False, "the buffer 'seen'")]


def test_optimizer_steps_count(tmp_path):
    class PerEpoch(VerifyReplicas):
        """Notes when it compares."""

        def _compare(self, strategy, module, step):
            self.steps = [*getattr(self, "steps", []), step]
            return super()._compare(strategy, module, step)

    def fit_accumulated(rank, path):
        verify, data = PerEpoch(3), loader(48, 2)
        options = {"callbacks": verify, "accumulate_grad_batches": 2, "limit_val_batches": 0}
        trainer = rank.trainer(max_steps=5, **options)
        trainer.fit(Tiny(), data)
        trainer.save_checkpoint(path)
        rank.trainer(max_steps=10, **options).fit(Tiny(), data, ckpt_path=path)
        return verify.steps

    assert TWO.run(fit_accumulated, tmp_path / "one.ckpt") == [[3, 6, 9], [3, 6, 9]]


def test_ignored_parameters_are_left_out():
    ignoring = partial(fit, every=1, ignore=("seen", "net.2.*"))
    assert TWO.run(ignoring, [(2, 1, "weight", 3), (3, 1, "moment", 3)], 6) == [([], 6, None)] * 2


def test_one_process_has_nothing_to_compare(tmp_path):
    trainer = make_trainer(tmp_path, VerifyReplicas(1), max_epochs=1, limit_val_batches=0)
    trainer.fit(Tiny(), loader())
    assert trainer.global_step == 4


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: "fsdp", "FSDPStrategy"),
        (Apart, "Apart"),
        (
            lambda: MeshParallelStrategy(pipeline=2, parts=["layer.0", "layer.1"]),
            "MeshParallelStrategy",
        ),
    ],
)
def test_strategies_whose_ranks_differ_are_refused(make, name):
    class Chain(Tiny):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def fit_refused(rank, make, name):
        trainer = rank.trainer(
            make(), max_epochs=1, callbacks=VerifyReplicas(1), limit_val_batches=0
        )
        with pytest.raises(
            UnsupportedError, match=rf"^VerifyReplicas compares ranks .* and {name} has none"
        ):
            trainer.fit(Chain(), loader())
        return trainer.global_step

    assert TWO.run(fit_refused, make, name) == [0, 0]


def test_shards_of_a_mesh_are_compared_with_their_copies():
    """Ranks 0 and 2 have one half, 1 and 3 the other."""
    four = Backend(lambda: MeshParallelStrategy(shard=2), num_processes=4, in_process=True)
    for found in four.run(fit, [(2, 3, "weight", 1)], 4):
        assert found[0] == [Difference(2, (1, 3), False, WORDS["weight"])]


@pytest.mark.parametrize(
    "options", [{"every_n_steps": 0}, {"on_difference": "stop"}, {"max_returns": 0}]
)
def test_wrong_arguments_are_refused(options):
    with pytest.raises(
        ConfigurationError,
        match=r"expected 1 step or more, 'end', 'warn' or 'go_back', and 1 or more",
    ):
        VerifyReplicas(**{"every_n_steps": 1} | options)
