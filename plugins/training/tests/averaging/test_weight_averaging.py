import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from core import (
    Capability,
    CheckpointError,
    Chunk,
    ConfigurationError,
    ShardedLeaf,
    UnsupportedError,
)
from core.callbacks import EMA, Callback, LambdaCallback, ModelCheckpoint, StochasticWeightAveraging
from core.checkpoint import load_checkpoint
from core.strategies import SingleDeviceStrategy
from support.tiny import Tiny, loader, make_trainer

# The tiny module can validate; most tests here have no need to.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
)


class Normalized(Tiny):
    def __init__(self, **options):
        super().__init__(**options)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.layer(self.norm(x))


def fit(root, callback, module, *others, validate=False, ckpt_path=None, **options):
    trainer = make_trainer(root, callback, *others, **{"max_epochs": 3, **options})
    trainer.fit(module, loader(), loader() if validate else None, ckpt_path=ckpt_path)
    return trainer


def weights_after_each_step(root, module, **options):
    """Copies of a module that is trained without any average."""
    copies = []

    def keep(trainer, module, *_):
        copies.append({name: value.clone() for name, value in module.state_dict().items()})

    fit(root, LambdaCallback(on_train_batch_end=keep), module, **options)
    return copies


def averaged(copies, **options):
    """torch's own average of these weights."""
    model = nn.Linear(2, 1)
    average = AveragedModel(model, **options)
    for copy in copies:
        model.load_state_dict({name.removeprefix("layer."): value for name, value in copy.items()})
        average.update_parameters(model)
    return average.module


# EMA ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "accumulated", "used"),
    [
        ({"decay": 0.5}, 1, slice(None)),
        ({"decay": 0.5}, 2, slice(1, None, 2)),
        ({"decay": 0.5, "every_n_steps": 3}, 1, slice(2, None, 3)),
        ({"decay": 0.9, "start_step": 5, "device": "cpu"}, 1, slice(4, None)),
    ],
)
def test_the_module_ends_with_torchs_own_average(tmp_path, options, accumulated, used):
    module = Tiny()
    fit(tmp_path, EMA(**options), module, accumulate_grad_batches=accumulated)
    copies = weights_after_each_step(tmp_path, Tiny(), accumulate_grad_batches=accumulated)
    expected = averaged(copies[used], multi_avg_fn=get_ema_multi_avg_fn(options["decay"]))
    assert torch.equal(module.layer.weight, expected.weight)
    assert not torch.equal(module.layer.weight, copies[-1]["layer.weight"])


@pytest.mark.parametrize("lends", [True, False])
def test_validation_uses_the_average_and_training_goes_on_without_it(tmp_path, lends):
    seen = []

    def look(trainer, module, *_):
        seen.append(module.layer.weight.detach().clone())

    module = Tiny()
    watch = LambdaCallback(on_validation_batch_start=look)
    fit(
        tmp_path,
        EMA(0.5, use_for_validation=lends),
        module,
        watch,
        validate=True,
        max_epochs=2,
        limit_val_batches=1,
    )
    copies = weights_after_each_step(tmp_path, Tiny(), max_epochs=2)
    for epoch, weight in enumerate(seen):
        end = 4 * (epoch + 1)
        average = averaged(copies[:end], multi_avg_fn=get_ema_multi_avg_fn(0.5)).weight
        assert torch.equal(weight, average if lends else copies[end - 1]["layer.weight"])
    assert len(seen) == 2
    assert torch.equal(
        module.layer.weight, averaged(copies, multi_avg_fn=get_ema_multi_avg_fn(0.5)).weight
    )


@pytest.mark.parametrize("use_buffers", [True, False])
def test_buffers(tmp_path, use_buffers):
    module, plain = Normalized(), Normalized()
    fit(tmp_path, EMA(0.5, use_buffers=use_buffers), module)
    copies = weights_after_each_step(tmp_path, plain)
    newest = copies[-1]["norm.running_mean"]
    assert torch.equal(module.norm.running_mean, newest) is not use_buffers


def test_a_callback_that_is_called_earlier_saves_the_average_of_the_newest_step(tmp_path):
    class Saving(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == 6:
                trainer.save_checkpoint(tmp_path / "c.ckpt")

    whole, resumed = Tiny(), Tiny()
    make_trainer(tmp_path, Saving(), EMA(0.9), max_epochs=3).fit(whole, loader())
    fit(tmp_path, EMA(0.9), resumed, ckpt_path=tmp_path / "c.ckpt")
    assert torch.equal(whole.layer.weight, resumed.layer.weight)


@pytest.mark.parametrize(
    ("make", "stop"),
    [
        (lambda: EMA(0.9), {"max_epochs": 2}),
        (lambda: StochasticWeightAveraging(0.05, swa_epoch_start=1), {"max_steps": 6}),
    ],
)
def test_a_run_goes_on_from_what_was_saved_after_fit(tmp_path, make, stop):
    whole, begun, resumed = Normalized(), Normalized(), Normalized()
    fit(tmp_path, make(), whole, max_epochs=4)
    trainer = fit(tmp_path, make(), begun, **{"max_epochs": 4, **stop})
    trainer.save_checkpoint(path := tmp_path / "late.ckpt")
    saved = load_checkpoint(path)
    assert torch.equal(saved["model"]["layer.weight"], begun.layer.weight)
    fit(tmp_path, make(), resumed, ckpt_path=path, max_epochs=4)
    assert all(
        torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items()
    )
    # Evaluation uses the average, with the callback and without it.
    for callbacks in ([make()], []):
        evaluated = Normalized()
        make_trainer(tmp_path, *callbacks).validate(evaluated, loader(), ckpt_path=path)
        assert torch.equal(evaluated.layer.weight, begun.layer.weight)
    # A later stage of the same Trainer evaluates what the module has, and not the trained weights
    # that were kept.
    lent = []
    watch = LambdaCallback(
        on_validation_epoch_end=lambda _, module: lent.append(module.layer.weight.clone())
    )
    trainer.callbacks.append(watch)
    trainer.validate(begun, loader())
    assert torch.equal(lent[0], saved["model"]["layer.weight"])


def test_a_checkpoint_holds_both_weights_and_is_evaluated_by_the_average(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}", monitor="val_loss")
    fit(tmp_path, EMA(0.9), Tiny(), checkpoint, validate=True)
    saved = load_checkpoint(checkpoint.best_model_path)
    average = saved["callbacks"]["EMA"]["section"]["average"]
    assert average.keys() == saved["model"].keys()
    assert not torch.equal(average["layer.weight"], saved["model"]["layer.weight"])
    module = Tiny()
    trainer = make_trainer(tmp_path, EMA(0.9))
    (result,) = trainer.validate(module, loader(), ckpt_path=checkpoint.best_model_path)
    assert result["val_loss"] == pytest.approx(checkpoint.best_model_score.item(), rel=1e-6)
    assert torch.equal(module.layer.weight, saved["model"]["layer.weight"])
    (raw,) = make_trainer(tmp_path).validate(Tiny(), loader(), ckpt_path=checkpoint.best_model_path)
    assert raw["val_loss"] != result["val_loss"]


def test_after_an_exception_in_a_validation_run_the_module_has_its_own_weights(tmp_path):
    class Failing(Tiny):
        def validation_step(self, batch, batch_idx):
            raise RuntimeError("broken")

    module = Failing()
    with pytest.raises(RuntimeError, match="broken"):
        fit(tmp_path, EMA(0.5), module, validate=True)
    copies = weights_after_each_step(tmp_path, Tiny(), max_epochs=1)
    assert torch.equal(module.layer.weight, copies[-1]["layer.weight"])


def test_nobody_saves_the_average_as_the_weights(tmp_path):
    class Hasty(Callback):
        def on_validation_epoch_end(self, trainer, module):
            trainer.save_checkpoint(tmp_path / "hasty.ckpt")

    with pytest.raises(
        ConfigurationError, match=r"A checkpoint was asked for while EMA lends its average"
    ):
        fit(tmp_path, EMA(0.5), Tiny(), Hasty(), validate=True)


def test_an_average_of_another_model(tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}")
    fit(tmp_path, EMA(0.5), Tiny(), checkpoint)
    saved = load_checkpoint(checkpoint.best_model_path)
    average = saved["callbacks"]["EMA"]["section"]["average"]
    average["other"] = average.pop("layer.bias")
    ema = EMA(0.5)
    trainer = make_trainer(tmp_path)
    trainer.validate(Tiny(), loader())
    with pytest.raises(
        CheckpointError,
        match=r"average of EMA doesn't fit the model: only one of the two has 'layer.bias'",
    ):
        ema.on_load_checkpoint(trainer, Tiny(), {"average": average, "num_averaged": 1})


def test_a_strategy_that_gives_copies_of_weights(tmp_path):
    class Copies(SingleDeviceStrategy):
        """Keeps weights elsewhere, and gives copies of them."""

        capabilities = SingleDeviceStrategy().capabilities | Capability.SHARDED_STATE

        def get_module_state_dict(self, module, *, layout=None):
            def leaf(value):
                chunk = Chunk((0,) * value.dim(), tuple(value.shape), value.clone())
                return ShardedLeaf(tuple(value.shape), value.dtype, (chunk,))

            return {name: leaf(value.detach()) for name, value in module.named_parameters()}

    with pytest.raises(
        UnsupportedError, match=r"needs the memory in which they are, and Copies .* gives copies"
    ):
        fit(tmp_path, EMA(0.5), Tiny(), strategy=Copies())


def test_it_pickles():
    ema = pickle.loads(pickle.dumps(EMA(0.75)))
    average, current = [torch.zeros(1)], [torch.ones(1)]
    ema._average_fn(average, current, 1)
    assert average[0].item() == 0.25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.5}, r"EMA\(decay=1.5\): expected a number from 0 to 1"),
        (
            {"every_n_steps": 0},
            r"every_n_steps=0, start_step=0\): expected numbers from 1 and from 0",
        ),
    ],
)
def test_arguments_of_ema_that_cannot_be(options, message):
    with pytest.raises(ConfigurationError, match=message):
        EMA(**options)


# SWA ----------------------------------------------------------------------------------------------


def ends_of_epochs(ends):
    """A callback that keeps the weights at the ends of epochs."""
    return LambdaCallback(
        on_train_epoch_end=lambda trainer, module: ends.append(module.layer.weight.detach().clone())
    )


@pytest.mark.parametrize(("start", "first"), [(1, 1), (0.5, 2), (0, 0), (0.0, 0)])
def test_the_ends_of_the_last_epochs_are_averaged(tmp_path, start, first):
    ends, module = [], Tiny()
    fit(
        tmp_path, StochasticWeightAveraging(0.05, start), module, ends_of_epochs(ends), max_epochs=4
    )
    assert torch.allclose(module.layer.weight, torch.stack(ends[first:]).mean(0), atol=1e-7)


@pytest.mark.parametrize(
    ("rhythm", "best"), [({"val_check_interval": 1}, 2), ({"check_val_every_n_epoch": 2}, 16)]
)
def test_the_ends_of_epochs_are_averaged_whenever_it_validates_and_saves(tmp_path, rhythm, best):
    ends, module = [], Tiny(val_losses=[3, 1, 2])
    saves = ModelCheckpoint(tmp_path / "c", "{step}", monitor="val_loss", every_n_train_steps=1)
    average = StochasticWeightAveraging(0.05, 1)
    fit(
        tmp_path,
        average,
        module,
        ends_of_epochs(ends),
        saves,
        validate=True,
        max_epochs=4,
        **rhythm,
    )
    assert torch.allclose(module.layer.weight, torch.stack(ends[1:]).mean(0), atol=1e-7)
    assert saves.best_model_path.endswith(f"step={best}.ckpt")


def rates_by_epoch(root, swa, *others, module=None, **options):
    rates = []

    def note(trainer, module):
        rates.append([group["lr"] for group in trainer.strategy.optimizers[0].param_groups])

    class Decaying(Tiny):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(
                [{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.2}], lr=0.1
            )
            return [optimizer], [StepLR(optimizer, 1, 0.5)]

    watch = LambdaCallback(on_train_epoch_start=note)
    fit(root, swa, module or Decaying(), watch, *others, max_epochs=5, **options)
    return rates


def test_the_learning_rate_goes_to_the_average_s_and_the_schedulers_rest(tmp_path):
    swa = StochasticWeightAveraging(0.4, 2, annealing_epochs=2, annealing_strategy="linear")
    weight_rates = [rates[0] for rates in rates_by_epoch(tmp_path, swa)]
    # The scheduler's 0.1, 0.05 and 0.025; then half way and all the way to 0.4.
    assert weight_rates == pytest.approx([0.1, 0.05, 0.025, 0.2125, 0.4])


def test_along_a_cosine_and_for_each_group(tmp_path):
    swa = StochasticWeightAveraging([0.4, 0.8], 3, annealing_epochs=1)
    rates = rates_by_epoch(tmp_path, swa)
    assert rates[-1] == pytest.approx([0.4, 0.8])


def test_statistics_of_batch_norm_fit_the_average(tmp_path):
    module = Normalized()
    fit(tmp_path, StochasticWeightAveraging(0.3, 1), module)
    expected = Normalized()
    expected.load_state_dict(module.state_dict())
    expected.norm.reset_running_stats()
    update_bn(loader(), expected)
    assert torch.allclose(module.norm.running_mean, expected.norm.running_mean)
    assert torch.allclose(module.norm.running_var, expected.norm.running_var)
    kept = Normalized()
    fit(tmp_path, StochasticWeightAveraging(0.3, 1, update_batch_norm=False), kept)
    assert not torch.allclose(kept.norm.running_mean, expected.norm.running_mean)


def test_batch_norm_needs_a_forward(tmp_path):
    class NoForward(Normalized):
        forward = nn.Module.forward

        def training_step(self, batch, batch_idx):
            return self.layer(self.norm(batch[0])).square().mean()

    with pytest.raises(
        ConfigurationError, match=r"by calling forward, which NoForward doesn't define"
    ):
        fit(tmp_path, StochasticWeightAveraging(0.3, 1), NoForward())


def test_a_fraction_of_unknown_epochs(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"swa_epoch_start=0.8\) is a fraction of max_epochs, which the trainer",
    ):
        fit(tmp_path, StochasticWeightAveraging(0.3), Tiny(), max_epochs=None, max_steps=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, 1.5), r"swa_epoch_start=1.5\): expected an epoch \(int, from 0\) or a fraction"),
        ((0.1, -1), r"swa_epoch_start=-1\)"),
        ((0.1, 1, 10, "sine"), r"annealing_strategy='sine'\): expected 'cos' or 'linear'"),
    ],
)
def test_arguments_of_swa_that_cannot_be(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        StochasticWeightAveraging(*arguments)
