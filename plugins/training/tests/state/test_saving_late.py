"""`trainer.save_checkpoint` when no stage runs. That of several ranks is the conformance kit's."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from core import CheckpointError, ConfigurationError, Module, Trainer
from core.accelerators import CPUAccelerator
from core.checkpoint import load_checkpoint
from core.strategies import SingleDeviceStrategy
from core_testing import in_one_process
from support.resuming import Case, adamw_by_step, train
from support.small_nets import QUIET


class Net(Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def training_step(self, batch):
        return (self.weight * batch).sum()

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def test_the_caller_saves_what_ranks_of_another_process_have_left(tmp_path):
    trainer = Trainer(
        strategy="ddp_fork",
        devices=2,
        max_epochs=1,
        limit_val_batches=0,
        **QUIET,
    )
    trainer.fit(Net(), DataLoader(torch.ones(4, 2), batch_size=1))
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    with pytest.warns(UserWarning, match="the optimizers are gone"):
        trainer.save_checkpoint(tmp_path / "late.ckpt")
    saved = {name: load_checkpoint(tmp_path / f"{name}.ckpt") for name in ("weights", "late")}
    assert [part["model"]["weight"].tolist() for part in saved.values()] == [[0.5, 0.5]] * 2
    assert "progress" not in saved["weights"]
    assert "progress" in saved["late"]


@pytest.mark.parametrize(
    ("strategy", "stop"),
    [
        ("auto", {"max_epochs": 1}),
        ("auto", {"max_steps": 7}),
        ("ddp", {"max_steps": 7}),
    ],
)
def test_a_run_goes_on_from_what_was_saved_after_fit(tmp_path, strategy, stop):
    def saving_late():
        """Train, save once fit has returned, and go on in another Trainer; all events and the
        weights.
        """
        begun, trainer = train(case, num_ranks=num_ranks, returns_trainer=True, **stop)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.save_checkpoint(tmp_path / "late.ckpt")
        rest, weights, _ = train(
            case, num_ranks=num_ranks, ckpt_path=tmp_path / "late.ckpt", seed=99
        )
        return begun + rest, weights

    num_ranks = 1 + (strategy != "auto")
    case = Case(adamw_by_step, validates=True, trainer={"strategy": strategy})
    saved = in_one_process(saving_late, ranks=num_ranks)
    whole = in_one_process(lambda: train(case, num_ranks=num_ranks)[:2], ranks=num_ranks)
    assert saved == whole


@pytest.mark.parametrize("storage", ["torch", "distributed"])
def test_what_a_strategy_keeps_for_a_rank_is_that_of_the_end_of_fit(tmp_path, storage):
    class Drawing(SingleDeviceStrategy):
        """Has a number of its own, such as the random state of a second device, and forgets it with
        each set-up.
        """

        number = 0

        def setup_module(self, module):
            self.number = 0
            return super().setup_module(module)

        def optimizer_step(self, *arguments, **options):
            self.number += 1
            return super().optimizer_step(*arguments, **options)

        def rank_state_dict(self):
            return {"number": torch.tensor(self.number)}

        def load_rank_state_dict(self, state):
            self.number = int(state["number"])

    path = tmp_path / "late.ckpt"
    for max_steps, ckpt_path in ((3, None), (5, path)):
        strategy = Drawing(accelerator=CPUAccelerator())
        trainer = Trainer(
            strategy=strategy, max_steps=max_steps, limit_val_batches=0, plugins=[storage], **QUIET
        )
        trainer.fit(Net(), DataLoader(torch.ones(6, 2), batch_size=1), ckpt_path=ckpt_path)
        assert strategy.number == max_steps
        strategy.number = 99  # the user goes on drawing
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.save_checkpoint(path)


def evaluate_first(trainer, module):
    trainer.validate(module, DataLoader(torch.ones(1, 2)))


def replace_weights(trainer, module):
    module.weight = torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize("change", [evaluate_first, replace_weights])
def test_a_checkpoint_without_its_optimizers_says_so(tmp_path, change):
    def trainer(max_epochs):
        return Trainer(max_epochs=max_epochs, **QUIET)

    first, module = trainer(max_epochs=1), Net()
    first.fit(module, [torch.ones(2)], [torch.ones(2)])
    change(first, module)
    with pytest.warns(
        UserWarning, match=r"late.ckpt'\): the optimizers are gone, so training can't go on"
    ) as caught:
        first.save_checkpoint(tmp_path / "late.ckpt")
    assert caught[0].filename == __file__
    with pytest.raises(
        CheckpointError, match=r"state of 0 optimizers, and .* made 1\. What was saved after fit"
    ):
        trainer(max_epochs=2).fit(
            Net(), [torch.ones(2)], [torch.ones(2)], ckpt_path=tmp_path / "late.ckpt"
        )


def test_it_saves_after_an_exception_within_a_window(tmp_path):
    class Failing(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise ValueError("enough")
            return super().training_step(batch)

    trainer = Trainer(max_epochs=1, accumulate_grad_batches=2, limit_val_batches=0, **QUIET)
    with pytest.raises(ValueError, match="enough"):
        trainer.fit(Failing(), DataLoader(torch.ones(4, 2), batch_size=1))
    with pytest.warns(UserWarning, match="the optimizers are gone"):
        trainer.save_checkpoint(tmp_path / "late.ckpt")
    saved = load_checkpoint(tmp_path / "late.ckpt")
    assert saved["model"]["weight"].tolist() == [0.75, 0.75]
    assert saved["progress"]["global_step"] == 1


def test_there_is_no_module_yet(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"has no module yet\. Call it after fit, or in a hook"
    ):
        Trainer(**QUIET).save_checkpoint(tmp_path / "early.ckpt")
