"""Searches for settings: what they find, and that they leave nothing behind."""

import builtins
import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, DataModule, DeviceError, Module, Tuner
from core.callbacks import BatchSizeFinder, LambdaCallback, LearningRateFinder
from core_testing import in_one_process
from core_training.tuning import LearningRateCurve
from support.tiny import make_trainer

NUM_SAMPLES = 40


def data():
    inputs = torch.randn(NUM_SAMPLES, 3, generator=torch.Generator().manual_seed(5))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def fill_memory():
    torch.empty(2**60)


def fill_device():
    """As a GPU says it, which isn't here."""
    raise torch.OutOfMemoryError


class Net(Module):
    """Runs out of memory with more samples than `limit`, on rank 1 at half of that."""

    def __init__(self, lr=0.003, limit=1000, fails=fill_memory):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(8, 1),
        )
        self.save_hyperparameters("lr")
        self.lr, self.batch_size, self.limit, self.fails = lr, 4, limit, fails
        self.losses, self.sizes = [], []

    def train_dataloader(self):
        return DataLoader(data(), self.batch_size, shuffle=True)

    def training_step(self, batch, batch_idx):
        self.sizes.append(len(batch[0]))
        if len(batch[0]) > self.limit // (1 + self.global_rank):
            self.fails()
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def seed(number=3):
    random.seed(number), numpy.random.seed(number), torch.manual_seed(number)


def fit(root, module, *callbacks, tuned=(), loader=None, **options):
    """Losses, weights, and random numbers that come next."""
    trainer = make_trainer(
        root, *callbacks, **{"max_epochs": 2, "enable_checkpointing": False, **options}
    )
    seed()
    for method, arguments in tuned:
        getattr(Tuner(trainer), method)(module, loader, **arguments)
    trainer.fit(module, loader)
    weights = {name: value.tolist() for name, value in module.state_dict().items()}
    return (
        module.losses,
        weights,
        (random.random(), numpy.random.rand(), torch.rand(1).item()),
        trainer.global_step,
    )


def shuffled():
    return DataLoader(data(), 4, shuffle=True, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(("by", "make_loader"), [("callback", lambda: None), ("method", shuffled)])
def test_a_run_after_a_search_is_the_one_that_was_started_with_its_rate(
    tmp_path, by, make_loader, capsys
):
    module = Net()
    if by == "callback":
        finder = LearningRateFinder(num_training_steps=30)
        found = fit(tmp_path, module, finder, loader=make_loader())
        num_steps = len(finder.optimal_lr.results["lr"])
        said = (
            f"LearningRateFinder has set lr to {module.lr:.3g}, after {num_steps} steps of a "
            "copy.\n"
        )
        assert capsys.readouterr().out == said
        assert repr(finder.optimal_lr).endswith("num_training=30)")
        assert module.lr == finder.learning_rate == finder.optimal_lr.suggestion()
    else:
        found = fit(
            tmp_path, module, tuned=[("lr_find", {"num_training": 30})], loader=make_loader()
        )
    assert module.lr != 0.003
    assert module.hparams.lr == module.lr
    assert found == fit(tmp_path, Net(module.lr), loader=make_loader())


def test_a_run_after_a_search_for_a_batch_size_is_the_one_that_was_started_with_it(
    tmp_path, capsys
):
    module, finder = Net(limit=17), BatchSizeFinder()
    found = fit(tmp_path, module, finder)
    assert capsys.readouterr().out == "BatchSizeFinder has set batch_size to 16.\n"
    assert module.batch_size == finder.optimal_batch_size == 16
    started = Net()
    started.batch_size = 16
    assert found == fit(tmp_path, started)


def test_a_search_calls_and_writes_nothing_of_the_trainers(tmp_path):
    called = []
    listener = LambdaCallback(on_train_start=lambda *_: called.append("callback"))
    trainer = make_trainer(tmp_path, listener, logger="csv", default_root_dir=tmp_path / "logs")
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    curve = Tuner(trainer).lr_find(module, shuffled(), num_training=12, update_attr=False)
    assert len(curve.results["lr"]) == 12
    assert [curve.results["lr"][0], curve.results["lr"][-1]] == pytest.approx([1e-8, 1])
    assert (module.lr, called, module.losses, trainer.global_step, trainer.max_steps) == (
        0.003,
        [],
        [],
        0,
        -1,
    )
    assert not (tmp_path / "logs").exists()
    assert all(map(torch.equal, module.state_dict().values(), before.values()))


def test_the_suggestion_is_where_the_loss_falls_most_steeply():
    rates, losses = [10.0**power for power in range(-5, 1)], [5.0, 4.9, 4.0, 1.0, 0.5, 9.0]
    curve = LearningRateCurve("exponential", 1e-5, 1, 6, {"lr": rates, "loss": losses})
    assert curve.suggestion(0, 0) == 1e-3  # 3.9 in two decades, against 3.5 around the next
    with pytest.warns(UserWarning, match="suggests none: only 6 losses"):
        assert curve.suggestion() is None
    curve.results["loss"] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    with pytest.warns(UserWarning, match="the loss falls nowhere"):
        assert curve.suggestion(0, 0) is None


def test_a_search_that_suggests_none_leaves_no_rate_of_the_one_before(tmp_path, capsys):
    finder = LearningRateFinder(num_training_steps=6)
    finder.learning_rate = 0.5
    with pytest.warns(UserWarning, match="suggests none"):
        fit(tmp_path, Net(), finder)
    assert (finder.learning_rate, capsys.readouterr().out) == (None, "")


def test_rates_grow_by_optimizer_steps(tmp_path):
    trainer = make_trainer(tmp_path, accumulate_grad_batches=3)
    curve = Tuner(trainer).lr_find(
        Net(), num_training=12, mode="linear", max_lr=0.11, min_lr=0.0001, update_attr=False
    )
    assert curve.results["lr"] == pytest.approx([0.0001 + 0.1099 / 11 * step for step in range(12)])


def test_a_quick_run_searches_for_nothing(tmp_path):
    module = Net()
    make_trainer(tmp_path, LearningRateFinder(), fast_dev_run=True).fit(module)
    assert module.lr == 0.003


@pytest.mark.parametrize("threshold", [2, None])
def test_it_stops_where_the_loss_explodes(tmp_path, threshold):
    class Exploding(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * (1 if len(self.losses) <= 20 else 1000 if threshold else float("inf"))

    finder = LearningRateFinder(mode="linear", early_stop_threshold=threshold, update_attr=False)
    fit(tmp_path, Exploding(), finder)
    assert len(finder.optimal_lr.results["lr"]) == (21 if threshold else 20)


def test_groups_keep_their_ratio(tmp_path):
    class Grouped(Net):
        def configure_optimizers(self):
            first, second = self.layers[:2].parameters(), self.layers[3].parameters()
            return torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.02}])

        def on_train_batch_end(self, *_):
            first, second = (group["lr"] for group in self.optimizers().param_groups)
            assert second == pytest.approx(first / 5)

    curve = Tuner(make_trainer(tmp_path)).lr_find(Grouped(), num_training=12, update_attr=False)
    assert len(curve.results["lr"]) == 12


def test_the_plot_says_what_to_install(tmp_path, monkeypatch):
    curve = Tuner(make_trainer(tmp_path)).lr_find(Net(), num_training=20)
    imported = builtins.__import__

    def without(name, *args):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(ConfigurationError, match="pip install matplotlib"):
            curve.plot()


@pytest.mark.parametrize(
    ("mode", "limit", "size", "fails"),
    [
        ("power", 25, 16, fill_memory),
        ("binsearch", 25, 25, fill_device),
        ("power", 99, 40, fill_memory),
    ],
)
def test_the_largest_batch_that_fits(tmp_path, mode, limit, size, fails):
    module = Net(limit=limit, fails=fails)
    assert (
        Tuner(make_trainer(tmp_path)).scale_batch_size(module, mode=mode)
        == module.batch_size
        == size
    )


def test_it_never_asks_for_more_than_there_is_and_stops_after_its_trials(tmp_path):
    asked = []

    class Data(DataModule):
        batch_size = 1

        def train_dataloader(self):
            asked.append(self.batch_size)
            return DataLoader(data(), self.batch_size)

    module, source = Net(), Data()
    assert (
        Tuner(make_trainer(tmp_path)).scale_batch_size(module, datamodule=source)
        == source.batch_size
        == 40
    )
    assert asked[1:] == [2, 4, 8, 16, 32, 40]
    assert (
        Tuner(make_trainer(tmp_path)).scale_batch_size(module, datamodule=Data(), max_trials=2) == 4
    )
    with pytest.raises(DeviceError, match="Not even a batch size of 1"):
        Tuner(make_trainer(tmp_path)).scale_batch_size(Net(limit=0), datamodule=Data())


def test_another_error_is_no_lack_of_memory(tmp_path):
    def break_down():
        raise RuntimeError("a bug")

    module = Net(limit=8, fails=break_down)
    with pytest.raises(RuntimeError, match="a bug"):
        Tuner(make_trainer(tmp_path)).scale_batch_size(module)


def test_ranks_agree(tmp_path):
    def search_on_ranks(root):
        module = Net(limit=34)
        rate, size = LearningRateFinder(num_training_steps=20), BatchSizeFinder("binsearch")
        found = fit(root, module, size, rate, strategy="ddp", devices=2)
        started = Net(module.lr)
        started.batch_size = module.batch_size
        return module.lr, module.batch_size, found == fit(root, started, strategy="ddp", devices=2)

    first, second = in_one_process(search_on_ranks, tmp_path)
    assert first == second
    assert first[0] != 0.003
    assert first[1:] == (17, True)  # rank 1 fits half as much


def test_forked_ranks_bring_the_settings_back(tmp_path):
    module, rate, size = Net(), LearningRateFinder(num_training_steps=20), BatchSizeFinder()
    fit(tmp_path, module, size, rate, strategy="ddp_fork", devices=2)
    assert module.batch_size == 20
    assert module.lr == rate.learning_rate != 0.003


def test_a_resumed_run_has_the_settings_that_it_was_begun_with(tmp_path):
    def finders():
        return BatchSizeFinder(), LearningRateFinder(num_training_steps=20)

    whole, first, rest = Net(limit=17), Net(limit=17), Net(limit=17)
    fit(tmp_path, whole, *finders(), max_epochs=3)
    trainer = make_trainer(tmp_path, *finders(), max_steps=4)
    seed()
    trainer.fit(first)
    trainer.save_checkpoint(tmp_path / "middle.ckpt")
    make_trainer(tmp_path, *finders(), max_epochs=3).fit(rest, ckpt_path=tmp_path / "middle.ckpt")
    assert first.losses + rest.losses == whole.losses
    assert (rest.lr, rest.batch_size) == (whole.lr, whole.batch_size)
    assert all(
        torch.equal(value, whole.state_dict()[name]) for name, value in rest.state_dict().items()
    )


def test_manual_optimization_is_refused(tmp_path):
    class Manual(Net):
        automatic_optimization = False

    with pytest.raises(ConfigurationError, match="automatic_optimization=False"):
        Tuner(make_trainer(tmp_path)).lr_find(Manual())


def test_two_optimizers_are_refused(tmp_path):
    class Pair(Net):
        def configure_optimizers(self):
            return [
                torch.optim.SGD(layers.parameters()) for layers in (self.layers[:2], self.layers[3])
            ]

    message = r"needs one optimizer, and Pair\.configure_optimizers returned 2"
    with pytest.raises(ConfigurationError, match=message):
        Tuner(make_trainer(tmp_path)).lr_find(Pair())


def test_a_loader_whose_batches_have_a_size_already_is_refused(tmp_path):
    class Fixed(Net):
        def train_dataloader(self):
            return DataLoader(data(), 4)

    message = "the training loader makes batches of 4"
    with pytest.raises(ConfigurationError, match=message):
        Tuner(make_trainer(tmp_path)).scale_batch_size(Fixed())


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (lambda tuner: tuner.lr_find(Net(), attr_name="rate"), "found no attribute 'rate' in Net"),
        (lambda tuner: tuner.lr_find(Net(), iter([])), "an iterator that a search would use up"),
        (
            lambda tuner: tuner.scale_batch_size(Net(), shuffled()),
            "train_dataloaders were passed as they are",
        ),
        (lambda tuner: tuner.lr_find(Net(), method="test"), "in training only"),
        (lambda tuner: tuner.lr_find(Net(), min_lr=1, max_lr=1), "0 < min_lr < max_lr"),
        (lambda tuner: tuner.lr_find(Net(), num_training=1), "num_training_steps=1"),
        (lambda tuner: tuner.scale_batch_size(Net(), mode="linear"), "mode='linear'"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(tmp_path, search, message):
    with pytest.raises(ConfigurationError, match=message):
        search(Tuner(make_trainer(tmp_path)))


def test_a_strategy_whose_shards_are_its_own_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, LearningRateFinder(), strategy="fsdp")
    with pytest.raises(ConfigurationError, match=r"FSDPStrategy has .*SHARDED_STATE"):
        trainer.fit(Net())


@pytest.mark.parametrize(
    "text",
    [
        "MPS backend out of memory (MPS allocated: 5.00 GiB, other allocations: 1.00 MiB, max "
        "allowed: 6.80 GiB).",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input.",
        "GET was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_what_gpus_say_of_too_little_memory_ends_a_trial_and_not_the_search(tmp_path, text):
    """As torch says it, which may be a RuntimeError: what asks for memory isn't always torch's
    allocator.
    """

    def run_out():
        raise RuntimeError(text)

    module = Net(limit=9, fails=run_out)
    assert (
        Tuner(make_trainer(tmp_path)).scale_batch_size(module, steps_per_trial=1, init_val=4) == 8
    )
