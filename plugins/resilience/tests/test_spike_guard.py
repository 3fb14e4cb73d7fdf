"""A run that met bad batches equals the run that never saw them."""

from itertools import product

import pytest
import torch
from disturbed_runs import Apart, Closure, Manual, Net, fit, samples
from torch import nn
from torch.utils.data import DataLoader

from core import Capability, ConfigurationError, UnsupportedError
from core.callbacks import SpikeGuard
from core.loggers import CSVLogger
from core.precision import MixedPrecision
from core.strategies import SingleDeviceStrategy
from core_fsdp import FSDPStrategy
from core_parallel import MeshParallelStrategy
from core_resilience import SpikeError
from core_resilience.recent_range import RecentRange
from core_testing import Backend
from support.tiny import Tiny, make_trainer

pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given",
    "ignore:SpikeGuard (skips|names)",
)
BACKENDS = {
    "single_device": Backend(lambda: "single_device", in_process=True),
    "ddp": Backend(lambda: "ddp", num_processes=2, in_process=True),
    "fsdp": Backend(lambda: "fsdp", num_processes=2, in_process=True),
}


CASES = {
    "not finite": (float("nan"), 1, 1, {}),
    "out of range": (1e4, 1, 1, {}),
    "clipped": (1e4, 1, 1, {"gradient_clip_val": 0.1}),
    "accumulated": (float("inf"), 2, 1, {}),
    "several optimizers": (1e4, 1, 3, {}),
}


@pytest.mark.parametrize(
    ("strategy", "case"),
    [
        *product(["ddp"], CASES),
        ("single_device", "accumulated"),
        ("fsdp", "out of range"),
        ("fsdp", "accumulated"),
    ],
)
def test_a_run_that_met_a_bad_batch_equals_one_that_never_saw_it(strategy, case):
    off = {"least": 2, "window": 8, "on_spike": "skip"}

    def with_and_without(rank, value, accumulated, num_optimizers, options):
        data, guard = samples(rank.backend.num_processes), SpikeGuard(**off)
        left_out = [6, 7] if accumulated == 2 else [6]
        bad = data.clone()
        bad[6, -1] = value  # the last rank's
        kept = data[[number for number in range(len(data)) if number not in left_out]]
        options = {
            "num_optimizers": num_optimizers,
            "accumulate_grad_batches": accumulated,
            **options,
        }
        met = fit(rank, bad.flatten(0, 1), guard, **options)
        never = fit(rank, kept.flatten(0, 1), **options)
        return met, never, guard.num_skipped

    for (met, steps), (never, expected_steps), num_skipped in BACKENDS[strategy].run(
        with_and_without, *CASES[case]
    ):
        assert num_skipped == 1
        assert steps == expected_steps
        assert all(map(torch.equal, met.tensors, never.tensors))


@pytest.mark.parametrize(
    ("make", "num_ranks"),
    [
        (lambda: "ddp", 2),
        (lambda: "fsdp", 2),
        (lambda: FSDPStrategy(device_mesh=(2, 2)), 4),
        (lambda: MeshParallelStrategy(data=2, shard=2), 4),
    ],
    ids=["ddp", "fsdp", "shards with copies", "mesh"],
)
def test_the_norm_is_that_of_the_whole_gradient(make, num_ranks):
    class Smooth(Net):
        """Without what depends on the ranks: the norm of its gradient is the same on any number of
        them.
        """

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))

    def norms_of(rank, batch_size):
        guard = SpikeGuard()
        rank.trainer(max_epochs=1, callbacks=guard).fit(
            Smooth(), DataLoader(samples(2, 4).flatten(0, 1), batch_size=batch_size)
        )
        return guard.state_dict()["values"]["gradient's norm"]

    [expected] = BACKENDS["single_device"].run(norms_of, 4)
    ranks = Backend(make, num_processes=num_ranks, in_process=True)
    assert ranks.run(norms_of, 4 // num_ranks) == [pytest.approx(expected, rel=1e-5)] * num_ranks


class Losses(Tiny):
    """Whose losses and gradients a test prescribes."""

    def training_step(self, batch, batch_idx):
        loss, factor = batch[0]
        weight = self.layer.weight.sum() + 0 * self.layer.bias.sum()
        return loss + factor * (weight - weight.detach())


def fit_losses(tmp_path, rows, guard, module=None, **options):
    trainer = make_trainer(
        tmp_path, guard, **({"max_epochs": 1, "enable_checkpointing": False} | options)
    )
    trainer.fit(module or Losses(), DataLoader(torch.tensor(rows)))
    return trainer


NAN = [float("nan"), 1.0]
USUAL = [[1.0, 1.0], [1.2, 1.1], [0.9, 0.9], [1.1, 1.0]]


@pytest.mark.parametrize(
    ("row", "options", "reason"),
    [
        (
            [9.0, 1.0],
            {},
            r"the highest loss, that of rank 0, is 9, out of its recent range from -inf to ",
        ),
        ([1.0, 9.0], {}, r"the gradient's norm is 12\.7\d*, out of its recent range"),
        ([1.0, float("inf")], {}, r"the loss of rank 0 is nan|the gradient's norm is inf"),
        (
            [0.01, 1.0],
            {"below": 4},
            r"the lowest loss, that of rank 0, is 0\.01, out of its recent range from 0\.\d* to "
            r"inf",
        ),
        ([1.0, 0.01], {"below": 4}, r"the gradient's norm is 0\.014\d*, out of its recent range"),
    ],
)
def test_what_is_far_out_of_its_range_is_skipped(tmp_path, row, options, reason):
    guard = SpikeGuard(least=4, on_spike="skip", **options)
    with pytest.warns(
        UserWarning,
        match=rf"^SpikeGuard skips the update of batch 4 of epoch 0, after step 4: ({reason})",
    ):
        trainer = fit_losses(tmp_path, [*USUAL, row, [1.0, 1.0]], guard)
    assert (trainer.global_step, guard.num_skipped) == (5, 1)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([*USUAL, [0.01, 0.01]], {"least": 4}),  # no lower bound
        ([*USUAL, [9.0, 9.0]], {"least": 5}),  # too few values
        ([*USUAL, [9.0, 9.0]], {"least": 4, "above": None}),
        ([[0.0, 0.0]] * 4 + [[9.0, 9.0]], {"least": 4}),  # zeros have no size
        ([[1.0, 1.0]] * 4 + [[1.9, 1.9]], {"least": 4}),  # within ten tenths of the median
    ],
)
def test_what_is_within_its_range_is_not(tmp_path, rows, options):
    guard = SpikeGuard(**options)
    assert fit_losses(tmp_path, rows, guard).global_step == len(rows)


def test_what_is_out_of_range_is_named_and_counted_and_made(tmp_path):
    guard, logger = SpikeGuard(least=4), CSVLogger(tmp_path)
    with pytest.warns(
        UserWarning,
        match=r"^SpikeGuard names batch 4 of epoch 0, after step 4: the highest loss, that of rank 0, "
        r"is 9, out of its recent range from -inf to \d.*\. Its update is made; on_spike='skip' leaves such out\.$",
    ):
        trainer = fit_losses(tmp_path, [*USUAL, [9.0, 1.0], [1.0, 1.0]], guard, logger=logger)
    assert (trainer.global_step, guard.num_out_of_range, guard.num_skipped) == (6, 1, 0)
    assert trainer.callback_metrics["spike_guard/out_of_range"] == 1
    again = SpikeGuard()
    again.load_state_dict(guard.state_dict())
    assert again.num_out_of_range == 1


def test_a_hundred_are_named_and_all_are_made(tmp_path, recwarn):
    guard = SpikeGuard(least=103, window=256)
    assert fit_losses(tmp_path, [[1.0, 1.0]] * 103 + [[9.0, 1.0]] * 102, guard).global_step == 205
    named = [each for each in recwarn if str(each.message).startswith("SpikeGuard names")]
    assert (len(named), guard.num_out_of_range, guard.num_skipped) == (100, 102, 0)


def test_skipped_values_dont_move_the_range():
    recent = RecentRange(size=4, least=2, above=10.0, below=1.0)
    recent.values.extend([5.0, 1.0, 2.0, 3.0, 4.0])
    assert recent.bounds() == pytest.approx((2.5 - 1.4826, 2.5 + 14.826))  # of the last four


def test_a_rank_without_samples_has_no_loss():
    def fit_uneven(rank):
        guard, rows = SpikeGuard(), [[5.0, 1.0], [6.0, 1.0], [7.0, 1.0]]
        rank.trainer(max_epochs=1, callbacks=guard).fit(Losses(), DataLoader(torch.tensor(rows)))
        return guard.state_dict()["values"]

    for values in BACKENDS["ddp"].run(fit_uneven):
        assert values["highest loss"] == [6.0, 7.0]
        assert values["lowest loss"] == [5.0, 7.0]


def test_too_many_in_a_row_end_the_run(tmp_path):
    with pytest.raises(
        SpikeError,
        match=r"In batch 6 of epoch 0, after step 2: the loss of rank 0 is nan\. 3 updates",
    ) as found:
        fit_losses(
            tmp_path, [[1.0, 1.0], NAN, NAN, [1.0, 1.0], NAN, NAN, NAN], SpikeGuard(max_in_a_row=2)
        )
    assert (found.value.step, found.value.num_skipped) == (2, 5)


def test_too_many_in_all_end_the_run_also_one_that_went_on(tmp_path):
    guard = SpikeGuard(max_skipped=2)
    trainer = fit_losses(tmp_path, [[1.0, 1.0], NAN, [1.0, 1.0]], guard)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    again = SpikeGuard(max_skipped=2)
    with pytest.raises(
        SpikeError, match=r"1 updates in a row were or would be skipped, 3 in all"
    ) as found:
        make_trainer(tmp_path, again, max_epochs=2).fit(
            Losses(),
            DataLoader(torch.tensor([NAN, [1.0, 1.0], NAN])),
            ckpt_path=tmp_path / "one.ckpt",
        )
    assert found.value.step == 3
    assert again.state_dict()["values"]["highest loss"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["OWNS_STEP", "COMPILED_STEP", "ELASTIC", "OWNS_GRADIENTS"])
def test_a_strategy_whose_step_cant_be_skipped_is_refused(tmp_path, name):
    class Engine(SingleDeviceStrategy):
        adds = Capability.NONE

        @property
        def capabilities(self):
            return super().capabilities | self.adds

    strategy = Engine()
    strategy.adds = Capability[name]
    with pytest.raises(
        UnsupportedError, match=r"^SpikeGuard can't skip an update of Engine, which "
    ):
        fit_losses(tmp_path, USUAL, SpikeGuard(), strategy=strategy)


def test_parts_of_gradients_that_nobody_knows_are_refused():
    def fit_apart(rank):
        with pytest.raises(
            UnsupportedError,
            match=r"^SpikeGuard adds up the gradient's norm .* and Apart lays out some",
        ):
            rank.trainer(Apart(), max_epochs=1, callbacks=SpikeGuard()).fit(
                Net(), DataLoader(samples(2, 1)[0], batch_size=2)
            )

    BACKENDS["ddp"].run(fit_apart)


def test_runs_that_step_in_other_ways_are_refused(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"updates of Manual, which has automatic_optimization=False"
    ):
        fit_losses(tmp_path, USUAL, SpikeGuard(), Manual())
    with pytest.raises(
        ConfigurationError, match=r"this optimizer computes gradients within its step"
    ):
        fit_losses(tmp_path, USUAL, SpikeGuard(), Closure())
    precision = MixedPrecision(torch.bfloat16, scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(ConfigurationError, match=r"with precision='bf16-mixed', whose loss scaler"):
        fit_losses(tmp_path, USUAL, SpikeGuard(), plugins=[precision])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"above": 0}, "expected positive numbers, or None"),
        ({"below": -1}, "expected positive numbers, or None"),
        ({"window": 8}, "expected numbers of at least 1, and least up to window"),
        ({"max_in_a_row": 0}, "expected numbers of at least 1, and least up to window"),
        ({"max_skipped": 0}, "expected numbers of at least 1, and least up to window"),
        ({"on_spike": "stop"}, "expected 'warn', 'skip' or 'go_back', and 0 or more"),
        ({"undo": -1}, "expected 'warn', 'skip' or 'go_back', and 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        SpikeGuard(**options)
