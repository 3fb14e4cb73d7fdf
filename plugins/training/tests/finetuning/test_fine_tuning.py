"""Parts that are frozen at first, on one process and two, and from any checkpoint on."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, ConfigurationError, Module, ModuleError
from core.callbacks import BackboneFinetuning, BaseFinetuning
from core_testing import in_one_process
from support.tiny import make_trainer

NUM_EPOCHS = 5


def lambda_lr(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)


def one_cycle(optimizer):
    return {
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40),
        "interval": "step",
    }


class Net(Module):
    def __init__(self, scheduler=lambda_lr, norm=nn.BatchNorm1d, optimizer=torch.optim.AdamW):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(
            nn.Linear(3, 4), norm(4), nn.Dropout(0.0 if norm is nn.LayerNorm else 0.3)
        )
        self.head = nn.Linear(4, 1)
        self.scheduler, self.optimizer = scheduler, optimizer
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1])
        rates = [group["lr"] for group in self.optimizers().param_groups]
        first = self.backbone[0].weight.detach().clone()
        self.seen.append((self.current_epoch, batch_idx, loss.item(), rates, first.tolist()))
        return loss

    def configure_optimizers(self):
        optimizer = self.optimizer(
            [each for each in self.parameters() if each.requires_grad], lr=0.05
        )
        return [optimizer], [] if self.scheduler is None else [self.scheduler(optimizer)]


def loader(batch_size=4):
    inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size, shuffle=True)


class Save(Callback):
    runs_last = True

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, *_):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step:02}.ckpt")


def fit(root, module, callback, *others, ckpt_path=None, batch_size=4, **options):
    torch.manual_seed(1)
    options = {
        "max_epochs": NUM_EPOCHS,
        "enable_checkpointing": False,
        "plugins": "torch",
        **options,
    }
    trainer = make_trainer(root, callback, *others, **options)
    trainer.fit(module, loader(batch_size), ckpt_path=ckpt_path)
    return {name: value.tolist() for name, value in module.state_dict().items()}


def test_the_backbone_is_trained_from_its_epoch_on(tmp_path):
    module = Net(scheduler=None)
    fit(tmp_path, module, BackboneFinetuning(2))
    firsts = [weights for *_, weights in module.seen]
    # the ninth step is the first that changes it
    assert all(weights == firsts[0] for weights in firsts[:9])
    assert all(before != after for before, after in pairwise(firsts[8:]))
    rates = {epoch: rates for epoch, _, _, rates, _ in module.seen}
    assert [rates[epoch] for epoch in (0, 1)] == [[0.05]] * 2
    assert [rates[epoch][1] for epoch in (2, 3, 4)] == pytest.approx([0.005, 0.01, 0.02])


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({"backbone_initial_lr": 0.04}, [0.04, 0.05]),
        ({"backbone_initial_lr": 0.04, "should_align": False}, [0.04, 0.08]),
        (
            {"backbone_initial_ratio_lr": 0.5, "lambda_func": lambda epoch: epoch / 10},
            [0.025, 0.0125],
        ),
    ],
)
def test_its_rate(tmp_path, options, own, capsys):
    module = Net(scheduler=None)
    fit(tmp_path, module, BackboneFinetuning(3, verbose=True, rounding=3, **options))
    rates = {epoch: rates for epoch, _, _, rates, _ in module.seen}
    assert [rates[3][1], rates[4][1]] == pytest.approx(own)
    assert f"learning rate: 0.05, backbone: {round(own[0], 3)}" in capsys.readouterr().out


@pytest.mark.parametrize(("scheduler", "train_bn"), [(lambda_lr, True), (one_cycle, False)])
def test_a_run_goes_on_from_anywhere(tmp_path, scheduler, train_bn):
    whole = Net(scheduler)
    weights = fit(tmp_path, whole, BackboneFinetuning(2, train_bn=train_bn), Save(tmp_path))
    for step in (3, 8, 14):  # frozen, between the two, and later
        rest = Net(scheduler)
        again = fit(
            tmp_path,
            rest,
            BackboneFinetuning(2, train_bn=train_bn),
            ckpt_path=tmp_path / f"{step:02}.ckpt",
        )
        assert rest.seen == whole.seen[step:]
        assert again == weights


@pytest.mark.parametrize("train_bn", [True, False])
def test_batch_norms_rest_if_asked(tmp_path, train_bn):
    module = Net()
    fit(tmp_path, module, BackboneFinetuning(2, train_bn=train_bn), max_epochs=2)
    assert (module.backbone[1].running_mean.tolist() != [0.0] * 4) == train_bn


def test_ranks_train_it_as_one_device_does(tmp_path):
    def fit_on(root, **options):
        return fit(
            root,
            Net(norm=nn.LayerNorm, optimizer=torch.optim.SGD),
            BackboneFinetuning(2),
            **options,
        )

    def fit_on_two(root):
        return fit_on(root, batch_size=2, strategy="ddp", devices=2)

    weights, others = in_one_process(fit_on_two, tmp_path)
    assert weights == others
    for name, value in fit_on(tmp_path).items():
        assert torch.allclose(torch.tensor(value), torch.tensor(weights[name]), atol=1e-5), name


def test_a_subclass_freezes_what_it_likes(tmp_path):
    whole = Net()

    class ByLayer(BaseFinetuning):
        """Two groups, one after the other; the second has parameters that the optimizer holds."""

        def freeze_before_training(self, pl_module):
            self.freeze([pl_module.backbone[0], pl_module.head])

        def finetune_function(self, pl_module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(
                    [pl_module.backbone[0], pl_module.head], optimizer
                )
            if epoch == 3:
                self.freeze(pl_module.backbone)

    weights = fit(tmp_path, whole, ByLayer(), Save(tmp_path))
    trained = [before[-1] != after[-1] for before, after in pairwise(whole.seen)]
    assert trained == [False] * 4 + [True] * 8 + [False] * 7
    for step in (5, 13):
        rest = Net()
        assert fit(tmp_path, rest, ByLayer(), ckpt_path=tmp_path / f"{step:02}.ckpt") == weights
        assert rest.seen == whole.seen[step:]


def test_what_is_unfrozen_learns_at_a_share_of_the_rate_of_the_first_group(tmp_path):
    class Thaw(BaseFinetuning):
        def freeze_before_training(self, pl_module):
            self.freeze(pl_module.backbone)

        def finetune_function(self, pl_module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)
            self.rates = [group["lr"] for group in optimizer.param_groups]

    class TwoRates(Net):
        def configure_optimizers(self):
            return torch.optim.SGD(
                [{"params": [self.head.weight], "lr": 0.5}, {"params": [self.head.bias]}], lr=0.1
            )

    thaw = Thaw()
    fit(tmp_path, TwoRates(scheduler=None), thaw, max_epochs=2)
    assert thaw.rates == [0.5, 0.1, 0.05]


def test_what_cannot_be_is_refused(tmp_path):
    class Bare(Net):
        def __init__(self):
            super().__init__()
            del self.backbone

    with pytest.raises(ModuleError, match="Bare has none that is a module"):
        fit(tmp_path, Bare(), BackboneFinetuning())
    with pytest.raises(ConfigurationError, match=r"FSDPStrategy has .*SHARDED_STATE"):
        fit(tmp_path, Net(), BackboneFinetuning(), strategy="fsdp")
    with pytest.raises(ConfigurationError, match="unfreeze_backbone_at_epoch=-1"):
        BackboneFinetuning(-1)
    with pytest.raises(ConfigurationError, match="expected more than 0"):
        BackboneFinetuning(1, backbone_initial_lr=0)
    with pytest.raises(NotImplementedError):
        fit(tmp_path, Net(), BaseFinetuning())


def test_parts_of_modules_are_found_and_frozen_alone():
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(norm, nn.ReLU()))
    layers = BaseFinetuning.flatten_modules(model)
    assert (
        layers
        == [model[0], norm, model[1][1]]
        == BaseFinetuning.flatten_modules(nn.ModuleDict({"a": model}))
    )
    BaseFinetuning.freeze_module(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    BaseFinetuning.freeze_module(norm)
    assert [parameter.requires_grad for parameter in model.parameters()] == [
        True,
        True,
        False,
        False,
    ]
    assert not norm.track_running_stats
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    assert BaseFinetuning.filter_on_optimizer(optimizer, model.parameters()) == list(
        norm.parameters()
    )
