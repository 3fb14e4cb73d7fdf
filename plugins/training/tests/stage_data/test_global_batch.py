"""`global_batch_size`: every optimizer step has as many samples as the user asked, whatever the
number of ranks.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from core import Callback, ConfigurationError, Fabric, Trainer
from core.callbacks import GradientAccumulationScheduler
from core.contract import UnsupportedError
from core_testing import in_one_process
from support.global_batches import QUIET, Net, close, data


class SaveAfter(Callback):
    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and not trainer.count_unfinished():
            trainer.save_checkpoint(self.path)


def train(num_ranks, *, batch_size=3, drop_last=False, save=None, stop_at=-1, **options):
    """Two epochs; or from a checkpoint, or up to a step. Weights, steps, and (step, samples) of
    each batch.
    """
    torch.manual_seed(1)
    fit = {name: options.pop(name) for name in ("ckpt_path",) if name in options}
    callbacks = [SaveAfter(*save)] if save else None
    quiet = QUIET | {
        "max_epochs": 2,
        "max_steps": stop_at,
        "callbacks": callbacks,
        "global_batch_size": 12,
    }
    trainer = Trainer(
        devices=num_ranks, strategy="ddp" if num_ranks > 1 else "auto", **(quiet | options)
    )
    module = Net()
    trainer.fit(
        module, DataLoader(data(), batch_size=batch_size, shuffle=True, drop_last=drop_last), **fit
    )
    weights = torch.cat([part.detach().flatten() for part in module.parameters()]).tolist()
    return weights, trainer.global_step, module.seen


@pytest.mark.slow
def test_the_steps_are_the_same_on_any_number_of_ranks(tmp_path):
    """And a run that goes on elsewhere, from within an epoch, is the run that stayed."""
    whole, steps, seen = train(1, save=(tmp_path / "two", 2))
    assert steps == 8
    assert [number for step, number in seen if step == 0] == [3, 3, 3, 3]
    assert [number for step, number in seen if step == 3] == [3, 3, 3]  # the short window of nine
    assert train(1, batch_size=64)[0] == close(whole)
    for num_ranks, in_a_batch in ((2, [3, 3]), (3, [2, 2])):
        for weights, done, theirs in in_one_process(train, num_ranks, ranks=num_ranks):
            assert weights == close(whole)
            assert done == steps
            assert [number for step, number in theirs if step == 0] == in_a_batch
    # One rank, then two, then three, then one again.
    in_one_process(
        lambda: train(2, ckpt_path=tmp_path / "two", save=(tmp_path / "three", 3), stop_at=3)
    )
    in_one_process(
        lambda: train(3, ckpt_path=tmp_path / "three", save=(tmp_path / "six", 6), stop_at=6),
        ranks=3,
    )
    weights, done, _ = train(1, ckpt_path=tmp_path / "six")
    assert (weights, done) == (close(whole), steps)
    # Twelve ranks' worth of samples is no multiple of four ranks' batches of five: they are cut to
    # three.
    for weights, done, theirs in in_one_process(lambda: train(4, batch_size=5), ranks=4):
        assert (weights, done) == (close(whole), steps)
        assert theirs[0] == (0, 3)


def test_drop_last_leaves_out_a_window_that_is_short():
    weights, steps, _ = train(1, drop_last=True)
    assert steps == 6
    for theirs, done, _ in in_one_process(lambda: train(2, drop_last=True)):
        assert (theirs, done) == (close(weights), 6)


def test_a_loop_of_ones_own_is_told_when_to_step():
    def fabric_loop(num_ranks):
        torch.manual_seed(1)
        fabric = Fabric(
            accelerator="cpu", devices=num_ranks, strategy="ddp" if num_ranks > 1 else "auto"
        )
        module = nn.Linear(3, 1, dtype=torch.float64)
        torch.manual_seed(0)
        nn.init.normal_(module.weight)
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        torch.manual_seed(1)
        loader = fabric.setup_dataloaders(
            DataLoader(data(), batch_size=3, shuffle=True), global_batch_size=12
        )
        num_steps = 0
        for _ in range(2):
            for inputs, targets, _ in loader:
                with fabric.no_backward_sync(model, enabled=not loader.ends_window):
                    fabric.backward(
                        nn.functional.mse_loss(model(inputs), targets) * loader.loss_weight
                    )
                if loader.ends_window:
                    optimizer.step()
                    optimizer.zero_grad()
                    num_steps += 1
        fabric.teardown()
        return model.weight.flatten().tolist(), num_steps, loader.num_accumulated

    weights, num_steps, num_accumulated = fabric_loop(1)
    assert (num_steps, num_accumulated) == (8, 4)
    for theirs, steps, accumulated in in_one_process(fabric_loop, 3, ranks=3):
        assert (theirs, steps, accumulated) == (close(weights), 8, 2)


# what is refused, and what comes as it is ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 4, "strategy": "ddp", "global_batch_size": 10}, "can't be divided evenly among 4 ranks. The "
         "nearest that can be: global_batch_size=8 or global_batch_size=12."),
        ({"devices": 2, "strategy": "ddp", "global_batch_size": 1}, "global_batch_size=2."),
        ({"global_batch_size": 0}, "global_batch_size=0: expected an integer of at least 1"),
        ({"global_batch_size": 8, "accumulate_grad_batches": 2}, "both say how many samples make a " "step"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused_when_the_trainer_is_made(options, message):
    with pytest.raises(ConfigurationError) as raised:
        Trainer(**{"accelerator": "cpu", "devices": 1, **options})
    assert message in str(raised.value)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(8, 3, dtype=torch.float64))


class OnStream(Net):
    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()


def test_what_cannot_be_divided_is_refused_before_work():
    class Own:
        def __iter__(self):
            return iter([[0, 1], [2, 3]])

    class Manual(Net):
        automatic_optimization = False

    def fit(loader, module=None, **options):
        Trainer(**{**QUIET, "devices": 1, "max_epochs": 1, "global_batch_size": 12, **options}).fit(
            module or OnStream(), loader
        )

    with pytest.raises(
        ConfigurationError,
        match=r"needs a DataLoader with a batch_size.*got a DataLoader with batch_s",
    ):
        fit(DataLoader(torch.ones(8, 3), batch_sampler=Own()))
    with pytest.raises(
        ConfigurationError, match=r"needs a DataLoader with a batch_size.*got a list"
    ):
        fit([torch.ones(2, 3)])
    with pytest.raises(ConfigurationError, match="one training loader, and there are 2"):
        fit({"a": DataLoader(data()), "b": DataLoader(data())})
    with pytest.raises(
        ConfigurationError, match=r"batches of 5 come as they are.*global_batch_size=10 or .*=15\.$"
    ):
        fit(DataLoader(Stream(), batch_size=5))
    with pytest.raises(ConfigurationError, match="automatic_optimization=False"):
        fit(DataLoader(data()), Manual())
    with pytest.raises(ConfigurationError, match="GradientAccumulationScheduler contradict"):
        fit(DataLoader(data()), callbacks=GradientAccumulationScheduler({0: 2}))
    fabric = Fabric(accelerator="cpu", devices=1)
    for wrong in ({"global_batch_size": 0}, {"global_batch_size": 4, "stage": "test"}):
        with pytest.raises(ConfigurationError, match="global_batch_size"):
            fabric.setup_dataloaders(DataLoader(data()), **wrong)


def test_batches_that_come_as_they_are_are_counted():
    trainer = Trainer(**QUIET, devices=1, max_epochs=1, global_batch_size=4)
    trainer.fit(OnStream(), DataLoader(Stream(), batch_size=2))
    assert (trainer.global_step, trainer.accumulate_grad_batches) == (2, 2)


def test_who_counts_samples_otherwise_is_refused():
    from core.contract import Capability
    from core.strategies import SingleDeviceStrategy

    for capability in (Capability.ELASTIC, Capability.COMPILED_STEP):
        kind = type("Other", (SingleDeviceStrategy,), {"capabilities": capability})
        with pytest.raises(UnsupportedError, match=r"global_batch_size=4 needs .*Other"):
            Trainer(accelerator="cpu", strategy=kind(), global_batch_size=4)
