"""A stop and an exception in a training, seen from inside."""

import signal
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint
from core.trainer.loops import stop_agreement
from core.trainer.loops.stop_agreement import QueuedExchange
from core.trainer.signals import exchange_interval
from support.late_cuda import MAIN_LATE, simulate
from support.resuming import Samples, on_ranks


class Net(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch):
        return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def make(*callbacks, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 4,
    }
    return Trainer(accelerator="cpu", callbacks=list(callbacks), **{"devices": 1, **quiet, **options})


def loader(**options):
    return DataLoader(Samples(), **{"batch_size": 2, **options})


class At(Callback):
    """Does something after a step of one rank, or of all."""

    def __init__(self, step, action, rank=None):
        self.step, self.action, self.rank = step, action, rank
        self.exceptions, self.ends = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and self.rank in (None, trainer.global_rank):
            self.action(trainer)

    def on_exception(self, trainer, module, exception):
        self.exceptions.append(exception)

    def teardown(self, trainer, module, stage):
        self.ends.append(stage)


def stop(trainer):
    trainer.should_stop = True


def test_one_process_stops_after_the_running_step():
    trainer = make(At(3, stop))
    trainer.fit(Net(), loader())
    assert trainer.global_step == 3


def test_a_stop_waits_for_the_least_steps_and_epochs():
    trainer = make(At(3, stop), min_steps=7)
    trainer.fit(Net(), loader())
    assert trainer.global_step == 7
    trainer = make(At(3, stop), min_epochs=2)
    trainer.fit(Net(), loader())
    assert (trainer.global_step, trainer.current_epoch) == (20, 2)


def fit_until_one_rank_stops(rank):
    torch.manual_seed(0)
    trainer = make(At(3, stop, rank=rank), strategy="ddp", devices=2, max_epochs=1000)
    trainer.fit(Net(), loader(batch_size=1))
    return trainer.global_step, trainer.should_stop


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_stop_together_although_one_has_asked(rank):
    first, second = on_ranks(2, fit_until_one_rank_stops, rank)
    assert first == second
    steps, should_stop = first
    assert should_stop
    assert 3 <= steps < 10_000


def fit_with_a_queue(rank):
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch, MAIN_LATE)
        patch.setattr(torch.Tensor, "pin_memory", lambda self: self)

        class Queued(stop_agreement.StopAgreement):
            def __init__(self, run):
                super().__init__(run)
                self._queue = QueuedExchange(run.strategy)

        patch.setattr("core.trainer.loops.fit.StopAgreement", Queued)
        torch.manual_seed(0)
        trainer = make(At(5, stop, rank=rank), strategy="ddp", devices=2, max_epochs=1000)
        trainer.fit(Net(), loader(batch_size=1))
    return trainer.global_step, trainer.should_stop


def test_ranks_with_queues_stop_together_although_one_has_asked():
    first, second = on_ranks(2, fit_with_a_queue, 1)
    assert first == second
    assert first[1]
    assert 5 <= first[0] < 10_000


class Clock(Callback):
    """Tells its own time, of which a step takes so much; and after which steps ranks have talked."""

    def __init__(self, seconds_a_step):
        self.seconds_a_step, self.now_s, self.talked_at = seconds_a_step, 0.0, []

    def monotonic(self):
        return self.now_s

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.now_s += self.seconds_a_step

    def state_dict(self):
        return {"talked_at": self.talked_at}

    def load_state_dict(self, state):
        self.talked_at = state["talked_at"]


@pytest.mark.parametrize(
    ("seconds_a_step", "expected"),
    [(0.001, [1, 3, 7, 15, 31, 63]), (0.0625, [1, 3, 7, 15, 23, 31, 39]), (2.0, [1, 2, 3, 4, 5])],
)
def test_ranks_talk_twice_a_second_and_not_at_each_step(seconds_a_step, expected, monkeypatch):
    clock, agree = Clock(seconds_a_step), stop_agreement.StopAgreement.agree

    def note(self, batch):
        clock.talked_at.append(batch)
        agree(self, batch)

    monkeypatch.setattr(exchange_interval, "time", clock)
    monkeypatch.setattr(stop_agreement.StopAgreement, "agree", note)
    trainer = make(clock, strategy="ddp_fork", devices=2, max_epochs=1, use_distributed_sampler=False)
    trainer.fit(Net(), [(torch.ones(1, 3), torch.ones(1, 1))] * 100)
    within = [batch for batch in clock.talked_at if 0 < batch < 100]
    assert within[: len(expected)] == expected


def fit_until_time_is_over_on_one_rank():
    trainer = make(strategy="ddp", devices=2, max_epochs=-1, max_time={"seconds": 0.3})
    if trainer.strategy.cluster_environment.global_rank() == 0:
        trainer.progress._earlier_s = -1e6
    trainer.fit(Net(), loader(batch_size=1))
    return trainer.global_step


def test_time_is_over_for_all_ranks_at_once():
    first, second = on_ranks(2, fit_until_time_is_over_on_one_rank)
    assert first == second > 0


class Mistake(Exception):
    pass


def test_an_exception_is_raised_unchanged_after_everybody_has_heard_of_it():
    mistake = Mistake("own")

    def fail(trainer):
        raise mistake

    callback = At(2, fail)
    with pytest.raises(Mistake) as caught:
        make(callback).fit(Net(), loader())
    assert caught.value is mistake
    assert caught.value.__cause__ is None
    assert callback.exceptions == [mistake]
    assert callback.ends == ["fit"]


def test_a_keyboard_interrupt_that_somebody_raises_is_raised_unchanged():
    interrupt = KeyboardInterrupt()

    def fail(trainer):
        raise interrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        make(At(2, fail)).fit(Net(), loader())
    assert caught.value is interrupt


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


def test_ctrl_c_is_a_keyboard_interrupt_and_carries_a_code():
    before = handlers()
    callback = At(2, lambda trainer: signal.raise_signal(signal.SIGINT))
    trainer = make(callback)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(Net(), loader())
    assert caught.value.code == 130
    assert trainer.global_step == 2
    assert callback.exceptions == [caught.value]
    assert handlers() == before


def test_sigterm_is_a_system_exit():
    trainer = make(At(2, lambda trainer: signal.raise_signal(signal.SIGTERM)))
    with pytest.raises(SystemExit) as caught:
        trainer.fit(Net(), loader())
    assert caught.value.code == 143
    assert not isinstance(caught.value, KeyboardInterrupt)
    assert trainer.global_step == 2


@pytest.mark.parametrize("saves", [True, False])
def test_a_line_says_whether_a_stopped_run_can_go_on(tmp_path, capsys, saves):
    callbacks = [ModelCheckpoint(tmp_path, "it", every_n_train_steps=1)] if saves else []
    trainer = make(*callbacks, At(2, lambda trainer: signal.raise_signal(signal.SIGTERM)), enable_checkpointing=saves)
    with pytest.raises(SystemExit):
        trainer.fit(Net(), loader())
    after = f"The newest checkpoint holds step 2: ckpt_path='{tmp_path}/it.ckpt' goes on from it."
    what_is_saved = after if saves else "Nothing of it is saved."
    assert f"SIGTERM has stopped training after step 2. {what_is_saved}\n" in capsys.readouterr().err


def test_handlers_come_back_and_those_of_the_user_stay(monkeypatch):
    heard = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        own = signal.getsignal(signal.SIGTERM)
        trainer = make(At(2, lambda trainer: signal.raise_signal(signal.SIGTERM)), max_epochs=1)
        trainer.fit(Net(), loader())
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert heard == [signal.SIGTERM]
    assert trainer.global_step == 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_signals_are_left_alone():
    seen = []
    trainer = make(At(2, lambda trainer: seen.append(handlers())), max_epochs=1)
    before = handlers()
    thread = threading.Thread(target=trainer.fit, args=(Net(), loader()))
    thread.start()
    thread.join()
    assert trainer.global_step == 10
    assert seen == [before]


def test_a_trainer_inside_of_another_leaves_signals_to_that():
    def fit_another(trainer):
        inner = make(At(1, lambda trainer: signal.raise_signal(signal.SIGTERM)), max_epochs=1)
        inner.fit(Net(), loader())
        assert inner.global_step == 10

    trainer = make(At(2, fit_another))
    with pytest.raises(SystemExit):
        trainer.fit(Net(), loader())
    assert trainer.global_step == 2
