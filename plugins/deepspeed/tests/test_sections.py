"""A config that brings an optimizer and a scheduler along: they train as DeepSpeed means them."""

import functools
import json

import pytest
import torch
import zero_ranks
from deepspeed.runtime.lr_schedules import WarmupLR
from torch.utils.data import DataLoader, TensorDataset
from zero_ranks import end, loss_of, make_batch, make_model, on_one_device, share_of

from core import Capability, ConfigurationError, Fabric, Module, ModuleError, Trainer, WorkerError
from core_deepspeed import DeepSpeedStrategy

ADAMW = {"type": "AdamW", "params": {"lr": 0.05, "betas": [0.8, 0.9], "weight_decay": 0.1}}
WARMUP = {
    "type": "WarmupLR",
    "params": {"warmup_max_lr": 0.05, "warmup_num_steps": 4, "warmup_type": "linear"},
}


class Bare(Module):
    """Leaves `configure_optimizers` out, and notes its learning rates."""

    def __init__(self):
        super().__init__()
        self.layers, self.rates = make_model(), []

    def training_step(self, batch, batch_idx):
        return loss_of(self.layers, batch[0])

    def on_train_batch_start(self, batch, batch_idx):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])


def own_adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=0.05, betas=(0.8, 0.9), weight_decay=0.1)


def own_warmup(optimizer):
    return WarmupLR(optimizer, warmup_max_lr=0.05, warmup_num_steps=4, warmup_type="linear")


class WithOptimizer(Bare):
    configure_optimizers = own_adamw


class WithBoth(Bare):
    def configure_optimizers(self):
        optimizer = own_adamw(self)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": own_warmup(optimizer), "interval": "step"},
        }


def fit(rank, kind):
    module = kind()
    data = TensorDataset(torch.cat([make_batch(step, None) for step in range(3)]))
    rank.trainer(max_epochs=2).fit(
        module, DataLoader(data, batch_size=8 // rank.backend.data_parallel_size)
    )
    return module.rates, module.state_dict()


@functools.cache
def expected():
    return on_one_device(fit, WithBoth)


def on_two_ranks(config, function, *args):
    return zero_ranks.on_two_ranks(function, *args, stage=None, config=config)


def assert_trained(found):
    rates, weights = expected()
    assert found[0] == rates
    assert len(set(rates)) == 5
    torch.testing.assert_close(found[1], weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero", [{}, {"zero_optimization": {"stage": 2}}])
def test_a_file_with_both_trains_a_module_that_leaves_them_out(tmp_path, zero):
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps({"optimizer": ADAMW, "scheduler": WARMUP, **zero}))
    assert_trained(on_two_ranks(path, fit, Bare)[0])


def test_a_scheduler_alone_is_added_to_the_modules_optimizer():
    assert_trained(on_two_ranks({"scheduler": WARMUP}, fit, WithOptimizer)[0])


def test_a_scheduler_of_each_is_refused():
    with pytest.raises(
        WorkerError,
        match="a section 'scheduler', and configure_optimizers gave something else than",
    ):
        on_two_ranks({"scheduler": WARMUP}, fit, WithBoth)


def test_an_optimizer_of_each_is_refused_before_work():
    trainer = Trainer(
        strategy=DeepSpeedStrategy(config={"optimizer": ADAMW}), accelerator="cpu", devices=2
    )
    with pytest.raises(
        ModuleError,
        match=r"WithOptimizer has configure_optimizers\(\), and the configuration that Dee",
    ):
        trainer.fit(WithOptimizer(), DataLoader(make_batch(0, None)))


# loops by hand ------------------------------------------------------------------------------------


def test_a_loop_by_hand_takes_them_from_the_strategy():
    def loop(rank, is_of_config, takes_scheduler=True):
        fabric, module = rank.fabric(), Bare()
        optimizer = fabric.strategy.make_optimizer(module) if is_of_config else own_adamw(module)
        if takes_scheduler:
            scheduler = (
                fabric.strategy.make_scheduler(optimizer) if is_of_config else own_warmup(optimizer)
            )
        model, optimizer = fabric.setup(module, optimizer)
        rates = []
        for step in range(6):
            rates.append(optimizer.param_groups[0]["lr"])
            fabric.backward(loss_of(module.layers, share_of(rank, step)))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        weights = end(fabric, model.module)
        return rates, weights

    rates, weights = on_one_device(loop, False)
    both = {"optimizer": ADAMW, "scheduler": WARMUP}
    found = on_two_ranks(both, loop, True)[0]
    assert found[0] == rates
    torch.testing.assert_close(found[1], weights, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        WorkerError,
        match=r"'optimizer', .* optimizer = fabric\.strategy\.make_optimizer\(model\) bef",
    ):
        on_two_ranks(both, loop, False)
    with pytest.raises(
        WorkerError,
        match=r"'scheduler', .* scheduler = fabric\.strategy\.make_scheduler\(optimizer\)",
    ):
        on_two_ranks(both, loop, True, False)
    with pytest.raises(
        WorkerError, match=r"make_scheduler: config has no section 'scheduler'\. Add one, or make"
    ):
        on_two_ranks({"optimizer": ADAMW}, loop, True)


# what is made -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "kind", "expected"),
    [
        ({"type": "Adam"}, torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.0}),
        (
            {"type": "adamw", "params": {"torch_adam": True}},
            torch.optim.AdamW,
            {"weight_decay": 0.01},
        ),
        (
            {"type": "Adam", "params": {"adam_w_mode": False, "weight_decay": 0.1}},
            torch.optim.Adam,
            {},
        ),
        (
            {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.9}},
            torch.optim.SGD,
            {"lr": 0.5, "momentum": 0.9},
        ),
        ({"type": "adagrad", "params": {"lr": 0.5}}, torch.optim.Adagrad, {"lr": 0.5}),
    ],
)
def test_what_deepspeed_means(section, kind, expected):
    made = DeepSpeedStrategy(config={"optimizer": section}).make_optimizer(torch.nn.Linear(1, 1))
    assert type(made) is kind
    assert made.defaults.items() >= expected.items()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"optimizer": {"type": "Adan"}},
            "optimizer.type = 'Adan', which neither DeepSpeed nor torch.optim has",
        ),
        ({"optimizer": {"type": "AdmaW"}}, "torch.optim has. Did you mean 'AdamW'?"),
        (
            {"optimizer": {"type": "Muon"}},
            "isn't supported by core-deepspeed. Use one that steps each element",
        ),
        (
            {"optimizer": {"type": "OneBitAdam"}},
            "isn't supported by core-deepspeed. Name 'AdamW', or leave",
        ),
        ({"zero_optimization": {"stag": 2}}, "Did you mean 'stage'?"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"devcie": "cpu"}}},
            "Did you mean 'device'?",
        ),
        (
            {"aio": {"queue_deptt": 2}},
            "without a word. Did you mean 'queue_depth'? What it knows there",
        ),
        (
            {"optimizer": {"type": "Lion"}},
            "which DeepSpeed compiles when it is made, or takes from another package",
        ),
        (
            {"optimizer": {"params": {"lr": 1}}},
            "expected {'type': the class, 'params': {...}}, as DeepSpeed reads it",
        ),
        (
            {"optimizer": {"type": "SGD", "params": {"rate": 1}}},
            "unexpected keyword argument 'rate'",
        ),
        ({"optimizer": {"type": "Adam", "params": {"lr": -1}}}, "Invalid learning rate: -1"),
        (
            {"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}},
            "Write it as gradient_clipping",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"bias_correction": False}}},
            "which torch's Adam can't",
        ),
        (
            {"optimizer": {"type": "Adam", "legacy_fusion": True}},
            "optimizer.legacy_fusion, which has no effect here",
        ),
        (
            {"scheduler": {"type": "WarmUpLR"}},
            "which neither DeepSpeed nor torch.optim.lr_scheduler has",
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
            "must be a positive integer, got 0",
        ),
        (
            {
                "optimizer": ADAMW,
                "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
            },
            "scheduler.params.warmup_num_steps = 'auto', and makes the optimizer by itself",
        ),
    ],
)
def test_what_can_not_be_made_is_said_before_work(sections, message):
    with pytest.raises(ConfigurationError) as caught:
        Fabric(strategy=DeepSpeedStrategy(config=sections), accelerator="cpu", devices=2)
    assert message in str(caught.value)


def test_what_is_left_open_is_the_modules_to_say(caplog):
    left_open = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
    strategy = DeepSpeedStrategy(config={"optimizer": left_open, "scheduler": WARMUP})
    assert Capability.MAKES_OPTIMIZERS not in strategy.capabilities
    assert (
        "config says optimizer.params.lr = 'auto', which nothing here fills in: the section is left"
        in caplog.text
    )
    with pytest.raises(ModuleError, match=r"Bare has no configure_optimizers\(\), which fit needs"):
        Trainer(strategy=strategy, accelerator="cpu", devices=2).fit(
            Bare(), DataLoader(make_batch(0, None))
        )
