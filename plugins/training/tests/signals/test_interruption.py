"""A stop and an exception in a training, seen from inside."""

import signal
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback
from core.callbacks import LambdaCallback, ModelCheckpoint
from core_testing import in_one_process
from core_training.progress import Progress
from core_training.signals.interruption import SignalGuard
from support.small_nets import Net, batches, quiet_trainer


def fit(*callbacks, data=None, **options):
    """Ten steps an epoch."""
    trainer = quiet_trainer(
        **{"devices": 1, "max_epochs": 4, "callbacks": list(callbacks), **options}
    )
    trainer.fit(Net(), data or batches(10))
    return trainer


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


def interrupt(trainer):
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("options", "steps", "epoch"),
    [({}, 3, 0), ({"min_steps": 7}, 7, 0), ({"min_epochs": 2}, 20, 2)],
)
def test_a_stop_comes_after_the_running_step_or_the_least_steps_and_epochs(options, steps, epoch):
    trainer = fit(At(3, stop), **options)
    assert (trainer.global_step, trainer.current_epoch) == (steps, epoch)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_stop_together_although_one_has_asked(rank):
    on_two = {"strategy": "ddp", "devices": 2, "data": DataLoader(torch.ones(20, 4))}

    def train():
        trainer = fit(At(3, stop, rank=rank), max_epochs=1000, **on_two)
        return trainer.global_step, trainer.should_stop

    first, second = in_one_process(train)
    assert first == second
    assert first[1]
    assert 3 <= first[0] < 10_000


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, SystemExit, 143)],
)
def test_a_signal_ends_it_after_the_step_with_a_code(number, kind, code, capsys):
    before, callback, trainers = handlers(), At(2, lambda trainer: signal.raise_signal(number)), []
    with pytest.raises(kind) as caught:
        fit(callback, LambdaCallback(teardown=lambda trainer, *_: trainers.append(trainer)))
    (trainer,) = trainers
    assert isinstance(caught.value, KeyboardInterrupt) is (number == signal.SIGINT)
    assert caught.value.code == code
    assert (callback.exceptions, trainer.global_step) == ([caught.value], 2)
    assert handlers() == before
    assert (trainer.interrupted, trainer.received_sigterm) == (True, number == signal.SIGTERM)
    assert trainer.state == ("fit", None, "interrupted")
    assert (
        capsys.readouterr().err
        == f"{number.name} has stopped training after step 2. Nothing of it is saved.\n"
    )


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_train_end"])
def test_where_no_step_is_near_a_signal_ends_it_too(hook):
    ends = []
    strikes = LambdaCallback(
        **{hook: lambda trainer, *_: interrupt(trainer)}, teardown=lambda *_: ends.append("fit")
    )
    with pytest.raises(SystemExit) as caught:
        fit(strikes, max_epochs=1)
    assert (caught.value.code, ends) == (143, ["fit"])


def test_a_line_says_from_where_a_stopped_run_can_go_on(tmp_path, capsys):
    with pytest.raises(SystemExit):
        fit(
            ModelCheckpoint(tmp_path, "it", every_n_train_steps=1),
            At(2, interrupt),
            enable_checkpointing=True,
        )
    after = f"The newest checkpoint holds step 2: ckpt_path='{tmp_path}/it.ckpt' goes on from it."
    assert f"SIGTERM has stopped training after step 2. {after}\n" in capsys.readouterr().err


def test_handlers_come_back_and_those_of_the_user_stay():
    heard = []

    def own(number, frame):
        heard.append(number)

    previous = signal.signal(signal.SIGTERM, own)
    try:
        trainer = fit(At(2, interrupt), max_epochs=1)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert heard == [signal.SIGTERM]
    assert trainer.global_step == 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_as_a_stage_ends_leaves_no_handler_behind():
    """Python handles one before the first line of a function that is called."""
    guard = SignalGuard(Progress())

    def handle_at_exit(frame, event, argument):
        if frame.f_code is SignalGuard.__exit__.__code__:
            sys.settrace(tracer)
            guard._on_signal(signal.SIGTERM, frame)

    before, tracer = handlers(), sys.gettrace()
    with pytest.raises(SystemExit) as caught, guard:
        sys.settrace(handle_at_exit)
    assert caught.value.code == 143
    assert handlers() == before


def test_in_another_thread_signals_are_left_alone():
    seen, before = [], handlers()
    looks = At(2, lambda trainer: seen.append(handlers()))
    thread = threading.Thread(target=fit, args=[looks], kwargs={"max_epochs": 1})
    thread.start()
    thread.join()
    assert (seen, looks.ends) == ([before], ["fit"])


def test_a_trainer_inside_of_another_leaves_signals_to_that():
    inner = []
    outer = At(2, lambda trainer: inner.append(fit(At(1, interrupt), max_epochs=1).global_step))
    with pytest.raises(SystemExit):
        fit(outer)
    assert inner == [10]
