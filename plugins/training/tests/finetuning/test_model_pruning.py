"""Weights that are pruned: which, on all ranks, and from any checkpoint on."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from core import Callback, ConfigurationError, Module
from core.callbacks import EMA, ModelPruning, StochasticWeightAveraging
from support.tiny import loader, make_trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(2, 8), nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        return (self.second(self.first(batch[0]).relu()) - 1).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def fit(root, *callbacks, module=None, ckpt_path=None, **options):
    module = module or Net()
    trainer = make_trainer(
        root, *callbacks, **{"max_epochs": 3, "enable_checkpointing": False, **options}
    )
    trainer.fit(module, loader(), ckpt_path=ckpt_path)
    return module


def zeros(module):
    return [int((parameter == 0).sum()) for parameter in module.parameters()]


def equal(one, other):
    return all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("lottery", [False, True])
def test_a_run_goes_on_bit_equal(tmp_path, lottery):
    def pruning():
        return ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=lottery)

    class Save(Callback):
        runs_last = True

        def on_train_epoch_end(self, trainer, module):
            trainer.save_checkpoint(f"{trainer.default_root_dir}/{trainer.current_epoch}.ckpt")

    whole = fit(tmp_path, pruning(), Save())
    assert sum(zeros(whole)) >= 22, "of 33: 0.3 of what is left, three times"
    resumed = fit(tmp_path, pruning(), ckpt_path=tmp_path / "0.ckpt")
    assert equal(whole, resumed)
    # A checkpoint is that of any other run: its names are the module's, and the zeros are in it.
    loaded = Net.load_from_checkpoint(tmp_path / "2.ckpt")
    assert equal(loaded, whole)


def test_numbers_are_those_of_torch(tmp_path):
    """One epoch, pruned by torch's own function at its end, and another one with its
    reparametrization.
    """
    by_hand = Net()
    optimizer = by_hand.configure_optimizers()
    for _ in range(2):
        for batch in loader():
            optimizer.zero_grad()
            by_hand.training_step(batch, 0).backward()
            optimizer.step()
        prune.ln_structured(by_hand.first, "weight", amount=2, n=2, dim=0)
    module = Net()
    pairs = [(module.first, "weight")]
    pruning = ModelPruning("ln_structured", pairs, use_global_unstructured=False, amount=2, pruning_dim=0,
                           pruning_norm=2, use_lottery_ticket_hypothesis=False)  # fmt: skip
    fit(tmp_path, pruning, module=module, max_epochs=2)
    torch.testing.assert_close(module.first.weight, by_hand.first.weight, rtol=0, atol=0)
    assert zeros(module) == [8, 0, 0, 0]


def test_what_is_left_goes_back(tmp_path):
    begun = Net()
    module = fit(tmp_path, ModelPruning("l1_unstructured", amount=10), max_epochs=1)
    left = module.first.weight != 0
    assert torch.equal(module.first.weight[left], begun.first.weight[left])
    drawn = fit(
        tmp_path, ModelPruning("l1_unstructured", amount=10, resample_parameters=True), max_epochs=1
    )
    assert sum(zeros(drawn)) == 10
    assert not torch.equal(drawn.second.weight, module.second.weight)
    apart = fit(
        tmp_path, ModelPruning("l1_unstructured", amount=0.5, apply_pruning=lambda epoch: epoch > 5)
    )
    assert equal(apart, fit(tmp_path))


@pytest.mark.parametrize("pruning_comes_first", [False, True])
@pytest.mark.parametrize(
    "average", [EMA, partial(StochasticWeightAveraging, 0.05, 1)], ids=["ema", "swa"]
)
def test_averages_of_pruned_weights_are_zero(tmp_path, average, pruning_comes_first):
    pruning = ModelPruning("l1_unstructured", amount=10, use_lottery_ticket_hypothesis=False)
    order = (pruning, average()) if pruning_comes_first else (average(), pruning)
    averaged = fit(tmp_path, *order)
    assert sum(zeros(averaged)) == 30
    assert not equal(averaged, fit(tmp_path, pruning)), "it is an average"


def test_pruning_when_a_validation_run_ends_is_not_of_the_average_it_had(tmp_path):
    """The weights that are left go back to the first ones, whichever of the two callbacks hears of
    the end first.
    """

    class Validated(Net):
        def validation_step(self, batch, batch_idx):
            pass

        def on_train_end(self):
            self.trained = [parameter.detach().clone() for parameter in self.parameters()]

    begun, trained = Net(), []
    pruning = ModelPruning("l1_unstructured", amount=10, prune_on_train_epoch_end=False)
    for order in ((EMA(0.9), pruning), (pruning, EMA(0.9))):
        trainer = make_trainer(tmp_path, *order, max_epochs=1, enable_checkpointing=False)
        trainer.fit(module := Validated(), loader(), loader())
        trained.append(module.trained)
    assert all(map(torch.equal, *trained))
    for parameter, first in zip(trained[0], begun.parameters(), strict=True):
        assert torch.equal(parameter, first.where(parameter != 0, torch.zeros(())))


def test_all_ranks_have_the_same_masks(tmp_path, capfd):
    class Differ(Callback):
        """Ranks draw other numbers, and have equal weights at the end."""

        def on_train_start(self, trainer, module):
            torch.manual_seed(trainer.global_rank)

        def on_train_end(self, trainer, module):
            first, second = module.all_gather(module.first.weight)
            assert torch.equal(first, second)

    pruning = ModelPruning(
        "random_unstructured", amount=0.5, use_lottery_ticket_hypothesis=False, verbose=1
    )
    module = fit(tmp_path, Differ(), pruning, strategy="ddp_fork", devices=2, max_epochs=2)
    assert sum(zeros(module)) == 16 + 8
    assert capfd.readouterr().out.count("pruned: 24/33 (72.73%)") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pruning_fn": "l2_unstructured"}, "expected 'l1_unstructured' or 'random"),
        (
            {"pruning_fn": "ln_structured"},
            "prunes each parameter by itself. Pass use_global_unstructured=False",
        ),
        ({"pruning_fn": "ln_structured", "use_global_unstructured": False}, "needs pruning_dim"),
        (
            {"pruning_fn": "l1_unstructured", "parameter_names": ["scale"]},
            "Net has no parameter to prune named scale",
        ),
        (
            {"pruning_fn": "l1_unstructured", "parameters_to_prune": [(nn.ReLU(), "weight")]},
            "no parameter of Net",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_work(tmp_path, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, ModelPruning(**arguments))
