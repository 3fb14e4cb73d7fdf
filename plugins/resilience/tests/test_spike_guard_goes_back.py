"""A run that goes back from a bad batch equals the run that never saw it, nor what led to it."""

import pytest
import torch
from disturbed_runs import Net, fit, samples
from torch import nn
from torch.utils.data import DataLoader

from core import Capability, ConfigurationError, UnsupportedError
from core.callbacks import Callback, LambdaCallback, MemoryCheckpoint, SpikeGuard
from core.strategies import SingleDeviceStrategy
from core_parallel import MeshParallelStrategy
from core_resilience import SpikeError
from core_testing import Backend
from support.tiny import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:SpikeGuard (skips|goes)")
NAN = float("nan")


class Alone:
    """This process, as the only rank."""

    def __init__(self, folder):
        self.backend, self.folder = Backend(lambda: "single_device"), folder

    def trainer(self, callbacks, **options):
        return make_trainer(self.folder, *callbacks, enable_checkpointing=False, **options)


def guarded(rank, folder, data, guard, memory=(1, 3), others=(), **options):
    every, number = memory
    return fit(rank, data, guard, MemoryCheckpoint(every, folder, keep=number), *others, **options)


def with_and_without(rank, folder, case):
    """A run that met bad batches, the last rank's, and one that never saw what is to be left
    out.
    """
    case = {"value": 1e4, "undo": 0, "options": {}, **case}
    data = samples(rank.backend.num_processes)
    bad = data.clone()
    bad[case["bad"], -1] = case["value"]
    kept = [number for number in range(len(data)) if number not in case["leaves_out"]]
    guard = SpikeGuard(least=2, window=8, on_spike="go_back", undo=case["undo"])
    met = guarded(
        rank, folder, bad.flatten(0, 1), guard, case.get("memory", (1, 3)), **case["options"]
    )
    never = fit(rank, data[kept].flatten(0, 1), **case["options"])
    return met, never, (guard.num_skipped, guard.num_returns)


def check(results, begins, counts):
    for (met, steps), (never, expected_steps), found in results:
        assert met.starts == [0, *begins]
        assert (steps, found) == (expected_steps, counts)
        assert all(map(torch.equal, met.tensors, never.tensors))


@pytest.mark.parametrize(
    "strategy",
    ["ddp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fsdp", "parallel"))],
)
def test_a_run_that_goes_back_equals_one_that_never_saw_the_bad_batch(tmp_path, strategy):
    backends = {
        "ddp": Backend(lambda: "ddp", num_processes=2, in_process=True),
        "fsdp": Backend(lambda: "fsdp", num_processes=2, in_process=True),
        "parallel": Backend(
            lambda: MeshParallelStrategy(data=2, shard=2), num_processes=4, in_process=True
        ),
    }
    case = {"bad": [6], "leaves_out": [6], "memory": (4, 1), "options": {"norm": nn.LayerNorm}}
    check(backends[strategy].run(with_and_without, tmp_path, case), [4], (1, 1))


CASES = {
    "not finite": ({"bad": [6], "value": NAN, "leaves_out": [6]}, [6], 1),
    "with what led to it": ({"bad": [6], "undo": 2, "leaves_out": [4, 5, 6]}, [4], 1),
    "kept now and then": (
        {"bad": [10], "undo": 1, "memory": (4, 2), "leaves_out": [9, 10]},
        [8],
        1,
    ),
    "several in a row": ({"bad": [6, 7], "undo": 1, "leaves_out": [4, 5, 6, 7]}, [5, 4], 2),
    "several apart": ({"bad": [4, 8], "undo": 1, "leaves_out": [3, 4, 7, 8]}, [3, 5], 2),
    "accumulated": (
        {
            "bad": [6],
            "undo": 1,
            "leaves_out": [4, 5, 6, 7],
            "options": {"accumulate_grad_batches": 2},
        },
        [2],
        1,
    ),
    "in each epoch": (
        {
            "bad": [6],
            "leaves_out": [5, 6],
            "undo": 1,
            "options": {"max_epochs": 2, "norm": nn.LayerNorm},
        },
        [5, 15],
        2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_led_to_a_bad_batch_is_left_out_too(tmp_path, case):
    given, begins, num = CASES[case]
    check([with_and_without(Alone(tmp_path), tmp_path, given)], begins, (num, num))


def test_what_led_to_it_may_be_of_the_epoch_before(tmp_path):
    class ByEpoch:
        """A loader that leaves out other batches in each epoch."""

        def __init__(self, batches, leaves_out):
            self.batches, self.leaves_out = batches, iter(leaves_out)

        def __iter__(self):
            left_out = next(self.leaves_out)
            return (batch for number, batch in enumerate(self.batches) if number not in left_out)

    data, guard = samples(1), SpikeGuard(least=2, window=8, on_spike="go_back", undo=2)
    bad = data.clone()
    bad[0, 0] = NAN  # in the first epoch no state is from before it
    with pytest.warns(
        UserWarning,
        match=r"goes back from batch 0 of epoch 1, after step 11, to .* up to step 9: the",
    ):
        met = guarded(Alone(tmp_path), tmp_path, list(bad), guard, max_epochs=2)
    never = fit(Alone(tmp_path), ByEpoch(data, [(0, 10, 11), (0,)]), max_epochs=2)
    check([(met, never, (guard.num_skipped, guard.num_returns))], [9], (2, 1))


def bad_at(*numbers, num_batches=12):
    data = samples(1, num_batches)
    data[list(numbers), -1] = NAN
    return data.flatten(0, 1)


def test_too_many_in_a_row_end_the_run_though_good_ones_are_made_again(tmp_path):
    guard = SpikeGuard(on_spike="go_back", max_in_a_row=1)
    with pytest.raises(
        SpikeError, match=r"^In batch 11 of epoch 0, after step 9: .* 2 updates in a row"
    ) as found:
        guarded(Alone(tmp_path), tmp_path, bad_at(10, 11), guard, memory=(4, 2))
    assert (found.value.step, found.value.num_skipped) == (9, 2)


def test_one_between_them_is_none_in_a_row_and_returns_are_logged(tmp_path):
    guard, found = SpikeGuard(on_spike="go_back", max_in_a_row=1, undo=0), {}
    look = LambdaCallback(
        on_train_end=lambda trainer, module: found.update(trainer.callback_metrics)
    )
    assert guarded(Alone(tmp_path), tmp_path, bad_at(5, 7, 9), guard, others=[look])[1] == 9
    assert (guard.num_returns, found["spike_guard/skipped"], found["spike_guard/returns"]) == (
        3,
        3,
        3,
    )
    # another fit has other batches
    assert guarded(Alone(tmp_path), tmp_path, bad_at(), guard)[1] == 12


def test_a_run_that_resumes_leaves_the_same_batches_out(tmp_path):
    class Save(Callback):
        """Saves the last state before what is left out, when it has been made again."""

        def __init__(self, path, step):
            self.path, self.step, self.times = path, step, 0

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.times += trainer.global_step == self.step
            if self.times == 2:
                trainer.save_checkpoint(self.path)
                self.times = 3

    path = tmp_path / "saved.ckpt"
    guard, again = SpikeGuard(on_spike="go_back"), SpikeGuard(on_spike="go_back")
    met = guarded(Alone(tmp_path), tmp_path, bad_at(10), guard, (4, 2), [Save(path, 9)])
    keep, steps = guarded(Alone(tmp_path), tmp_path, bad_at(10), again, (4, 2), ckpt_path=path)
    assert (keep.starts, steps, again.num_skipped, again.num_returns) == ([9], met[1], 1, 1)
    assert all(map(torch.equal, keep.tensors, met[0].tensors))
    # the module doesn't see what is left out
    assert (met[0].num_calls, keep.num_calls) == (11 + 2, 1)
    # Batches of other ranks have other samples.
    again.load_state_dict({**guard.state_dict(), "num_ranks": 2, "left_out": [[7, 7]]})
    assert again.state_dict()["left_out"] == [[0, 9], [0, 10]]


def test_what_cant_go_back_says_so(tmp_path):
    class Engine(SingleDeviceStrategy):
        @property
        def capabilities(self):
            return super().capabilities & ~Capability.BIT_EXACT_RESUME

    guard, one = SpikeGuard(on_spike="go_back", undo=5), bad_at()
    with pytest.raises(
        ConfigurationError,
        match=r"^SpikeGuard\(on_spike='go_back'\) goes back to states that a Memory",
    ):
        make_trainer(tmp_path, guard, max_epochs=1).fit(Net(), DataLoader(one))
    with pytest.raises(ConfigurationError, match=r"keep=3\) keeps too few states\. Pass keep=4\."):
        guarded(Alone(tmp_path), tmp_path, one, guard, memory=(2, 3))
    with pytest.raises(
        UnsupportedError, match=r"^SpikeGuard\(on_spike='go_back'\) can't go back under Engine"
    ):
        guarded(Alone(tmp_path), tmp_path, one, guard, strategy=Engine())
