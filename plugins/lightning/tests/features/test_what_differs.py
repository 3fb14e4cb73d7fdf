"""What core gives otherwise than Lightning, each for a reason of `differences.toml`, which names
these tests.
"""

import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.numbers


def test_each_has_a_reason():
    path = Path(__file__).parents[2] / "core_lightning" / "decisions" / "differences.toml"
    behaviours = tomllib.loads(path.read_text(encoding="utf-8"))["behaviour"]
    named = [f"test_{name}" for each in behaviours for name in each["features"]]
    tests = {name for name in globals() if name.startswith("test_")}
    assert tests == {*named, "test_each_has_a_reason"}


def test_stop_with_accumulation(lit):
    class Stopping(lit.Plain):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 2:
                self.trainer.should_stop = True

    trainer = lit.fit(Stopping(), accumulate_grad_batches=2)
    assert trainer.global_step == 2  # 1 under Lightning


def test_max_steps_saves(lit):
    kept = lit.pl.callbacks.ModelCheckpoint("kept", monitor="val", save_top_k=-1)
    lit.fit(lit.Plain(), callbacks=[kept], enable_checkpointing=True, max_steps=6, max_epochs=-1)
    assert [path.name for path in Path("kept").iterdir()] == ["epoch=0-step=4.ckpt"]


def test_states_of_callbacks_in_a_test(lit):
    class Counting(lit.pl.Callback):
        count = 0

        def state_dict(self):
            return {"count": 3}

        def load_state_dict(self, state):
            self.count = state["count"]

    lit.fit(lit.Plain(), callbacks=[Counting()], max_epochs=1).save_checkpoint("a.ckpt")
    counting = Counting()
    lit.make_trainer(callbacks=[counting]).test(
        lit.Plain(), lit.load(), ckpt_path="a.ckpt", verbose=False
    )
    assert counting.count == 0


def test_loaders_after_on_fit_start(lit):
    class Loading(lit.Plain):
        def on_fit_start(self):
            self.seen.append("fit start")

        def train_dataloader(self):
            self.seen.append("loader")
            return lit.load()

    net = Loading()
    lit.make_trainer(max_epochs=1).fit(net)
    assert net.seen == ["loader", "fit start"]


def test_hooks_of_an_optimizer_step(lit):
    class Noting(lit.Plain):
        def on_before_zero_grad(self, optimizer):
            self.seen.append("zero")

        def on_before_backward(self, loss):
            self.seen.append("backward")

    net = Noting()
    lit.fit(net, max_epochs=1, limit_train_batches=1)
    assert net.seen == ["backward", "zero"]


def test_hooks_after_an_exception(lit):
    seen = []

    class Failing(lit.Plain):
        def training_step(self, batch, batch_idx):
            raise ValueError("no")

        def teardown(self, stage):
            seen.append("teardown")

    class Seen(lit.pl.Callback):
        def on_exception(self, trainer, module, exception):
            seen.append(trainer.state.status.value)

    with pytest.raises(ValueError, match="no"):
        lit.fit(Failing(), callbacks=[Seen()])
    assert seen == ["running", "teardown"]


def test_rates_and_momenta_in_the_logs(lit):
    kept = lit.Kept()
    monitor = lit.pl.callbacks.LearningRateMonitor(None, True, True)
    lit.fit(lit.Plain(), logger=kept, log_every_n_steps=1, callbacks=[monitor], max_epochs=1)
    assert [set(row) - {"epoch"} for _, row in kept.rows if "lr-SGD" in row] == [
        {"lr-SGD", "lr-SGD-momentum", "lr-SGD-weight_decay"}
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "peak_resident_bytes"),
        (
            {"cpu_stats": True},
            "cpu_memory_percent cpu_memory_used_bytes cpu_percent cpu_swap_percent "
            "peak_resident_bytes",
        ),
    ],
)
def test_statistics_of_the_device(lit, options, expected):
    kept = lit.Kept()
    monitor = lit.pl.callbacks.DeviceStatsMonitor(**options)
    lit.fit(lit.Plain(), logger=kept, log_every_n_steps=1, callbacks=[monitor], max_epochs=1)
    names = {name.rpartition("/")[2] for _, row in kept.rows for name in row if "/" in name}
    assert " ".join(sorted(names)) == expected


def test_log_on_step_and_epoch(lit):
    class Both(lit.Plain):
        def validation_step(self, batch, batch_idx):
            self.log("v", float(batch_idx), on_step=True, on_epoch=True)

    metrics = lit.fit(Both(), max_epochs=1).callback_metrics
    assert metrics.items() >= {"v": 1.5, "v_epoch": 1.5, "v_step": 3.0}.items()


def test_log_rows(lit):
    kept = lit.Kept()
    lit.fit(lit.Plain(), logger=kept, log_every_n_steps=2, max_epochs=1)
    assert kept.rows == [
        (2, {"epoch": 0.0, "loss": 0.7179}),
        (4, {"epoch": 0.0, "loss": 1.0534}),
        (4, {"epoch": 0.0, "val": 0.6139}),
    ]


def test_log_of_a_name_with_an_index(lit):
    class Indexed(lit.Plain):
        def training_step(self, batch, batch_idx):
            self.log("a/dataloader_idx_0", 1.0)
            return self.loss(batch)

    assert "a/dataloader_idx_0" in lit.fit(Indexed(), max_epochs=1).callback_metrics


def test_clipping_overridden(lit):
    class Clipping(lit.Plain):
        def configure_gradient_clipping(
            self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None
        ):
            self.seen.append((gradient_clip_val, gradient_clip_algorithm))
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    net = Clipping()
    lit.fit(net, max_epochs=1, gradient_clip_val=0.5)
    assert (net.seen, lit.total(net)) == ([(0.5, "norm")] * 4, 1.3375)


def test_datamodule_that_reloads(lit):
    seen = []

    class Data(lit.pl.LightningDataModule):
        def train_dataloader(self):
            seen.append("train")
            return lit.load()

        def val_dataloader(self):
            seen.append("val")
            return lit.load()

    trainer = lit.make_trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(lit.Plain(), datamodule=Data())
    assert seen == ["train", "val", "val", "train", "val", "train"]


def test_limits_of_nothing(lit):
    with pytest.raises(ValueError, match="limit_train_batches=0 leaves nothing to train on"):
        lit.fit(lit.Plain(), limit_train_batches=0, max_epochs=1)


@pytest.mark.parametrize("name", ["fast_dev_run", "training", "testing"])
def test_attributes_that_are_refused(lit, name):
    with pytest.raises(AttributeError, match="has no setter"):
        setattr(lit.make_trainer(), name, 1)
