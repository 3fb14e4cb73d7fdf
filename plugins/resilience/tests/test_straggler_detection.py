"""Slow ranks are named, with phase and line, and healthy runs name nobody.

Ranks nap in the time of a clock of their own, which has beside these naps only what their thread
computes: no load of the machine changes that. Naps that stand for waiting are taken where ranks
wait for each other.
"""

import json
import threading
import time
from pathlib import Path

import pytest
import torch
from disturbed_runs import Closure, Manual
from torch.utils.data import DataLoader, Dataset, IterableDataset

from core import Capability, ConfigurationError, Module, UnsupportedError
from core.callbacks import Callback, LambdaCallback, StragglerDetection
from core.loggers import CSVLogger
from core.strategies import SingleDeviceStrategy
from core_ddp import DDPStrategy
from core_parallel import MeshParallelStrategy
from core_resilience.clocks import DeviceClock, WallClock
from core_resilience.rank_times import NUM_WINDOWS, RankTimes
from core_resilience.straggler import Straggler
from core_testing import Backend
from support.tiny import Tiny, loader, make_trainer

TWO = Backend(lambda: Waiting(), num_processes=2, in_process=True)
NAP_S = 0.05
NUM_STEPS = 2 * (NUM_WINDOWS + 2)
QUICK = {"every_n_steps": 2, "every_s": 0, "behind": 0.5}
PHASES = ["data", "forward", "backward", "optimizer", "hooks"]


pytestmark = pytest.mark.filterwarnings("ignore:StragglerDetection")


class State(threading.local):
    """A rank's own: which one is slow, its number, and the time that was passed."""

    who = rank = 0
    passed_s = sleep_s = 0.0


state = State()


@pytest.fixture(autouse=True)
def own_clock(monkeypatch):
    monkeypatch.setattr(
        WallClock, "mark", staticmethod(lambda: time.thread_time() + state.passed_s)
    )


def nap(where, slow):
    """Pass time, and five times as much where this rank is the slow one."""
    is_slow = where == slow and state.rank == state.who
    state.passed_s += 5 * NAP_S if is_slow else NAP_S
    time.sleep(state.sleep_s if is_slow else 0)


def wait_for():
    """Pass time as a rank does that waits for another one."""
    state.passed_s += 20 * NAP_S if state.rank != state.who else 0


class Follow(Callback):
    """Knows the rank."""

    def on_train_start(self, trainer, module):
        state.rank = trainer.global_rank


class Samples(Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        nap("data", self.slow)
        return torch.ones(2)


class Net(Module):
    def __init__(self, slow):
        super().__init__()
        self.slow = slow
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    def training_step(self, batch):
        nap("forward", self.slow)
        loss = self.net(batch.repeat(2, 1)).square().mean()
        loss.register_hook(lambda gradient: nap("backward", self.slow))
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        optimizer.register_step_pre_hook(lambda *_: nap("optimizer", self.slow))
        return optimizer


class Waiting(DDPStrategy):
    """Waits in a barrier, for buffers before the module is called, and for gradients at the end of
    backward.
    """

    def barrier(self, name=None):
        wait_for()
        super().barrier(name)

    def configure_ddp(self):
        super().configure_ddp()
        self.model.register_forward_pre_hook(lambda *_: wait_for())
        engine, parameter = torch.autograd.Variable._execution_engine, next(self.model.parameters())
        parameter.register_hook(lambda gradient: engine.queue_callback(lambda: wait_for()))

    def background_collectives(self):
        line = super().background_collectives()
        gather = line.gather_objects

        def gather_objects(*args):
            wait_for()
            return gather(*args)

        line.gather_objects = gather_objects
        return line


def fit(rank, slow, who=1, sleep_s=0.0, **options):
    state.who, state.sleep_s, detection = who, sleep_s, StragglerDetection(**QUICK)
    # before each forward
    meet = LambdaCallback(on_train_batch_start=lambda trainer, *_: trainer.strategy.barrier())
    trainer = rank.trainer(
        max_epochs=1, max_steps=NUM_STEPS, callbacks=[Follow(), meet, detection], **options
    )
    trainer.fit(Net(slow), DataLoader(Samples(slow)))
    return detection.stragglers, detection.seconds, trainer.log_dir


@pytest.mark.parametrize("slow", PHASES[:4])
def test_the_slow_rank_is_named_with_its_phase(slow):
    """And what the other one waits for it, in the barrier and for its buffers, counts nowhere."""
    with pytest.warns(
        UserWarning, match=rf"^StragglerDetection: Rank 0 on .*mostly in {slow}: it takes "
    ) as warned:
        (first, seconds, _), (second, _, _) = TWO.run(fit, slow, 0)
    [straggler] = first
    assert (straggler.rank, straggler.phase) == (0, slow)
    assert first == second  # all ranks know
    assert straggler.own_s >= 5 * NAP_S
    # four naps more than the other's four: of six, the median
    assert straggler.share == pytest.approx(4 / 6, abs=0.1)
    assert seconds[0][slow] >= 5 * NAP_S
    assert all(seconds[1][phase] < 2 * NAP_S for phase in PHASES)
    # of rank 0
    assert len([each for each in warned if "StragglerDetection" in str(each.message)]) == 1


def test_what_a_straggler_says():
    late = Straggler(
        1, "host", "forward", "", 0.5, 20, 12, own_s=0.25, others_s=0.05, before_s=0.05
    )
    assert str(late) == (
        "Rank 1 on host is 50% behind the other ranks since step 12, mostly in forward: it takes "
        "250 ms there, the others 50 ms, and took 50 ms before."
    )


def test_the_line_is_named():
    [[straggler], [same]] = [stragglers for stragglers, _, _ in TWO.run(fit, "forward", 1, 0.03)]
    assert straggler == same
    assert straggler.rank == 1
    assert Path(straggler.line.partition(":")[0]).name == Path(__file__).name
    assert straggler.line.endswith(" in nap")
    assert str(straggler).endswith(f" Most of that time it is at {straggler.line}.")


def test_strategies_that_wait_within_forward_are_compared_by_what_they_compute():
    def spin(rank):
        class Spinning(Net):
            def training_step(self, batch):
                ends_s = time.thread_time() + (0.06 if rank.number == 1 else 0.01)
                while time.thread_time() < ends_s:
                    pass
                return self.net(batch.repeat(2, 1)).square().mean()

        detection = StragglerDetection(**QUICK | {"behind": 0.1})
        trainer = rank.trainer(max_epochs=1, max_steps=NUM_STEPS, callbacks=[detection])
        trainer.fit(Spinning(""), DataLoader(Samples("")))
        return [(each.rank, each.phase) for each in detection.stragglers], detection.seconds

    sharded = Backend(lambda: "fsdp", num_processes=2, in_process=True)

    for found, seconds in sharded.run(spin):
        assert found == [(1, "forward")]
        assert 0.01 <= seconds[0]["forward"] < 0.04 < seconds[1]["forward"]
        assert seconds[1]["hooks"] == 0


def test_phases_that_cant_be_told_apart_arent_measured():
    def fit_others(rank):
        found = []
        for module in (Manual(), Closure()):
            detection = StragglerDetection(every_n_steps=1, every_s=0)
            trainer = rank.trainer(max_epochs=1, callbacks=[detection], limit_val_batches=0)
            trainer.fit(module, loader())
            found.append([phase for phase, seconds in detection.seconds[0].items() if seconds])
        return found

    assert TWO.run(fit_others) == 2 * [[["data"], ["data", "forward", "backward", "hooks"]]]


def test_ranks_that_agree_on_batches_wait_for_who_reads_slowly():
    class Stream(IterableDataset):
        """Samples of which nobody knows how many there are."""

        def __iter__(self):
            for _ in range(2 * NUM_STEPS):
                nap("data", "data")
                yield torch.ones(2)

    def read_stream(rank):
        state.who, detection = 0, StragglerDetection(**QUICK)
        options = {"accumulate_grad_batches": 2, "use_distributed_sampler": False}
        trainer = rank.trainer(max_epochs=1, callbacks=[Follow(), detection], **options)
        trainer.fit(Net(""), DataLoader(Stream()))
        return [(each.rank, each.phase) for each in detection.stragglers], detection.seconds

    for stragglers, seconds in TWO.run(read_stream):
        assert stragglers == [(0, "data")]
        assert seconds[1]["data"] < 2 * NAP_S


def test_a_validation_is_no_part_of_a_step():
    class Validated(Net):
        def validation_step(self, batch):
            state.passed_s += 5 * NAP_S if state.rank == 0 else 0

    def validate(rank):
        detection = StragglerDetection(**QUICK)
        trainer = rank.trainer(
            max_epochs=1, max_steps=4, val_check_interval=1, callbacks=[Follow(), detection]
        )
        trainer.fit(Validated(""), DataLoader(Samples("")), DataLoader(torch.ones(2, 2)))
        return detection.seconds

    for seconds in TWO.run(validate):
        assert [each["data"] for each in seconds] == [0, 0]  # one comes before each batch
        assert seconds[0]["hooks"] < 5 * NAP_S


def test_times_are_logged_and_written(tmp_path):
    ([named], _, folder), _ = TWO.run(lambda rank: fit(rank, "forward", logger=CSVLogger(tmp_path)))
    content = json.loads((Path(folder) / "ranks.json").read_text(encoding="utf-8"))
    assert content["phases"] == PHASES
    assert [row.partition(",")[0] for row in content["rows"]] == ["rank 0", "rank 1"]
    assert content["named"] == [str(named)]
    assert [column["first_step"] for column in content["columns"]] == [*range(2, NUM_STEPS, 2)]
    assert [column["last_step"] for column in content["columns"]] == [*range(4, NUM_STEPS + 1, 2)]
    assert all(column["seconds"][1][1] > column["seconds"][0][1] for column in content["columns"])
    assert (
        "stragglers/behind"
        in (Path(folder) / "metrics.csv").read_text(encoding="utf-8").splitlines()[0]
    )


def test_one_process_has_nothing_to_compare(tmp_path):
    detection = StragglerDetection(every_n_steps=1, every_s=0, dirpath=tmp_path)
    trainer = make_trainer(tmp_path, detection, max_epochs=1, limit_val_batches=0)
    trainer.fit(Tiny(), loader())
    assert detection.seconds == detection.stragglers == []
    assert not (tmp_path / "ranks.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.device_count(), reason="needs a CUDA device")
def test_a_gpu_is_measured_in_its_queue():
    clock = DeviceClock()
    matrix = torch.ones(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    begin, began_s = clock.mark(), time.perf_counter()
    for _ in range(50):
        matrix @ matrix
    queued_s = time.perf_counter() - began_s
    passed_s = clock.seconds(begin, clock.mark())
    assert queued_s < passed_s <= time.perf_counter() - began_s


def test_ranks_with_different_work_are_refused(tmp_path):
    class Elastic(SingleDeviceStrategy):
        @property
        def capabilities(self):
            return super().capabilities | Capability.ELASTIC

    class Split(Tiny):
        tensor_parallel_plan = {"layer": "rowwise"}

    def fit_split(rank):
        with pytest.raises(
            UnsupportedError,
            match=r"of 2 ranks of MeshParallelStrategy only 1 do\. Leave the callback",
        ):
            rank.trainer(max_epochs=1, limit_val_batches=0, callbacks=StragglerDetection()).fit(
                Split(), loader()
            )

    with pytest.raises(
        UnsupportedError,
        match=r"^StragglerDetection compares ranks that step together, and those of",
    ):
        make_trainer(tmp_path, StragglerDetection(), strategy=Elastic("cpu")).fit(Tiny(), loader())
    Backend(
        lambda: MeshParallelStrategy(tensor=2),
        num_processes=2,
        data_parallel_size=1,
        in_process=True,
    ).run(fit_split)


@pytest.mark.parametrize("options", [{"behind": 0}, {"every_n_steps": 0}, {"every_s": -1}])
def test_wrong_arguments_are_refused(options):
    with pytest.raises(
        ConfigurationError,
        match=r"^StragglerDetection\(behind=.*: expected a share above 0, 1 step",
    ):
        StragglerDetection(**options)


def windows(num_windows, noise, num_ranks=2, **slow):
    """Windows of times that jump by so much, lognormally, and from one on a rank is slow in its
    first phase.
    """
    generator = torch.Generator().manual_seed(slow.get("seed", 0))
    times = RankTimes(0.05)
    for number in range(num_windows):
        seconds = 0.01 * torch.exp(
            noise * torch.randn(num_ranks, 5, generator=generator, dtype=torch.float64)
        )
        if number >= slow.get("begins", 10**9):
            seconds[1, 0] += slow["share"] * 0.05
        times.add(20 * number, seconds)
        times.find(NUM_WINDOWS // 2)
        yield times.find()


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_ten_percent_are_found_in_eight_windows(num_ranks):
    for seed in range(3):
        found = list(windows(24, 0.03, num_ranks, begins=10, share=0.1, seed=seed))
        assert not any(found[:15])
        assert [(each.rank, each.phase) for each in found[-1]] == [(1, 0)]
        assert 180 <= found[-1][0].since <= 220
        assert any(found[:18])  # eight windows later


def test_a_rank_that_is_slow_from_the_start_has_no_time_before():
    [*_, [found]] = windows(24, 0.03, begins=0, share=0.1)
    assert (found.since, found.before) == (0, None)
    assert found.share == pytest.approx(0.1, abs=0.02)
    assert found.seconds - found.others == pytest.approx(0.005, abs=0.001)


@pytest.mark.parametrize("noise", [0.02, 1.0])
def test_times_that_jump_name_nobody(noise):
    assert not any(windows(200, noise, 2))
