import time

import pytest
from recording import (
    Numbers,
    Recorder,
    Validating,
    fit,
    forget,
    loader,
    make_parallel_trainer,
    make_trainer,
    on_two,
    seen,
)

from core import Callback, CheckpointError, ConfigurationError, DataModule
from core.loggers import CSVLogger


class Data(DataModule):
    """Writes down its calls through the module that it serves."""

    def __init__(self, root):
        self.root, self.ready = root, False

    def note(self, call):
        rank = self.trainer.global_rank if self.trainer is not None else 0
        with (self.root / f"calls-{rank}.jsonl").open("a") as file:
            file.write(f'"{call}"\n')

    def prepare_data(self):
        self.note("prepare_data")
        (self.root / "downloaded").write_text("data")

    def setup(self, stage):
        self.note(f"setup {stage} {(self.root / 'downloaded').exists()}")
        self.ready = True

    def train_dataloader(self):
        self.note("train_dataloader")
        return loader() if self.ready else None

    def val_dataloader(self):
        return loader(4)

    def test_dataloader(self):
        return loader(2)

    def predict_dataloader(self):
        return loader(2)

    def teardown(self, stage):
        self.note(f"teardown {stage}")


def test_it_serves_every_stage(tmp_path):
    trainer, module, data = make_trainer(tmp_path), Validating(tmp_path), Data(tmp_path)
    trainer.fit(module, datamodule=data)
    assert seen(tmp_path) == [[0, 1], [2, 3], [4, 5]]
    assert seen(tmp_path, "validation") == [[0, 1], [2, 3]]
    forget(tmp_path)
    assert trainer.validate(module, datamodule=data) == [{"total": 6.0}]
    trainer.test(module, datamodule=data)
    assert seen(tmp_path, "test") == [[0, 1]]
    assert [batch.tolist() for batch in trainer.predict(module, datamodule=data)] == [[0, 10]]
    stages = [
        call.removeprefix("setup ") for call in seen(tmp_path, "calls") if call.startswith("setup")
    ]
    assert stages == ["validate True", "test True", "predict True"]


def test_the_order_of_its_hooks_and_of_others(tmp_path):
    class Net(Validating):
        def setup(self, stage):
            self.note("calls", f"module setup {stage}")

        def teardown(self, stage):
            self.note("calls", f"module teardown {stage}")

        def prepare_data(self):
            self.note("calls", "module prepare_data")

        def configure_model(self):
            self.note("calls", "configure_model")

    class Listener(Callback):
        def setup(self, trainer, module, stage):
            module.note("calls", "callback setup")

        def teardown(self, trainer, module, stage):
            module.note("calls", "callback teardown")

    make_trainer(tmp_path, callbacks=Listener()).fit(Net(tmp_path), datamodule=Data(tmp_path))
    assert seen(tmp_path, "calls") == [
        "prepare_data",
        "module prepare_data",
        "setup fit True",
        "callback setup",
        "module setup fit",
        "configure_model",
        "train_dataloader",
        "teardown fit",
        "callback teardown",
        "module teardown fit",
    ]


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_it_may_stand_in_the_place_of_loaders(tmp_path, stage):
    trainer, data = make_trainer(tmp_path), Data(tmp_path)
    getattr(trainer, stage)(Validating(tmp_path), data)
    assert trainer.datamodule is data


@pytest.mark.parametrize("per_node", [True, False])
def test_two_ranks_prepare_once_and_share_its_samples(tmp_path, monkeypatch, per_node):
    monkeypatch.setattr(Data, "prepare_data_per_node", per_node)
    on_two(tmp_path, lambda trainer: trainer.fit(Validating(tmp_path), datamodule=Data(tmp_path)))
    assert seen(tmp_path, "calls", 0) == [
        "prepare_data",
        "setup fit True",
        "train_dataloader",
        "teardown fit",
    ]
    assert seen(tmp_path, "calls", 1) == ["setup fit True", "train_dataloader", "teardown fit"]
    assert [seen(tmp_path, rank=rank) for rank in (0, 1)] == [[[0, 1], [4]], [[2, 3], [5]]]
    assert [seen(tmp_path, "validation", rank) for rank in (0, 1)] == [[[0, 1]], [[2, 3]]]


def test_the_others_wait_for_a_slow_download(tmp_path):
    class Slow(Data):
        def prepare_data(self):
            time.sleep(0.5)
            super().prepare_data()

    make_parallel_trainer(tmp_path).validate(Validating(tmp_path), datamodule=Slow(tmp_path))
    assert "setup validate True" in seen(tmp_path, "calls", 1)


def test_an_exception_comes_to_it(tmp_path):
    class Failing(Validating):
        def training_step(self, batch, batch_idx):
            raise ValueError("no")

    class Watching(Data):
        def on_exception(self, exception):
            self.note(f"exception {exception}")

    with pytest.raises(ValueError, match="no"):
        make_trainer(tmp_path).fit(Failing(tmp_path), datamodule=Watching(tmp_path))
    assert seen(tmp_path, "calls")[-2:] == ["exception no", "teardown fit"]


class Curriculum(DataModule):
    """Its data depends on its state."""

    def __init__(self):
        self.difficulty, self.restored = 0, None

    def train_dataloader(self):
        return loader(4, start=100 * self.difficulty)

    def state_dict(self):
        return {"difficulty": self.difficulty}

    def load_state_dict(self, state):
        self.restored = dict(state)
        self.difficulty = state["difficulty"]


def test_a_resumed_run_uses_its_state(tmp_path):
    data, trainer = Curriculum(), make_trainer(tmp_path, max_steps=1)
    data.difficulty = 7
    trainer.fit(Recorder(tmp_path), datamodule=data)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    assert seen(tmp_path) == [[700, 701]]
    forget(tmp_path)
    resumed = Curriculum()
    make_trainer(tmp_path).fit(
        Recorder(tmp_path), datamodule=resumed, ckpt_path=tmp_path / "first.ckpt"
    )
    assert resumed.restored == {"difficulty": 7}
    assert seen(tmp_path) == [[702, 703]]


class Configured(Curriculum):
    def __init__(self, num_samples, start=0):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return loader(self.hparams.num_samples, start=self.hparams.start)


def test_it_is_made_again_from_a_checkpoint(tmp_path):
    path = tmp_path / "a.ckpt"
    data = Configured(2, start=5)
    data.difficulty = 3
    trainer = make_trainer(tmp_path)
    trainer.fit(Recorder(tmp_path), datamodule=data)
    trainer.save_checkpoint(path)
    again = Configured.load_from_checkpoint(path, start=7)
    assert (again.hparams.num_samples, again.hparams.start, again.difficulty) == (2, 7, 3)


def test_a_checkpoint_without_a_data_module(tmp_path):
    path = tmp_path / "a.ckpt"
    trainer = fit(tmp_path, loader())
    trainer.save_checkpoint(path)
    with pytest.raises(CheckpointError, match="has nothing of a data module"):
        Configured.load_from_checkpoint(path)


def test_loggers_get_the_hyperparameters_of_both(tmp_path):
    class Net(Recorder):
        def __init__(self, root, width=4):
            super().__init__(root)
            self.save_hyperparameters(ignore="root")

    class Keeping(CSVLogger):
        def log_hyperparams(self, params):
            found.append(dict(params))

    found = []
    trainer = make_trainer(tmp_path, logger=Keeping(tmp_path))
    trainer.fit(Net(tmp_path), datamodule=Configured(2))
    assert found == [{"num_samples": 2, "start": 0, "width": 4}]


class TrainOnly(DataModule):
    def train_dataloader(self):
        return loader(2, start=40)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [20, 21]),
        ({"train_dataloaders": loader(2)}, [0, 1]),
        ({"datamodule": TrainOnly()}, [40, 41]),
    ],
    ids=["the module's", "arguments", "the data module's"],
)
def test_whose_loaders_are_read(tmp_path, arguments, expected):
    class OwnData(Validating):
        def train_dataloader(self):
            return loader(2, start=20)

        def val_dataloader(self):
            return loader(2, start=30)

    make_trainer(tmp_path).fit(OwnData(tmp_path), **arguments)
    assert seen(tmp_path) == [expected]
    assert seen(tmp_path, "validation") == [[30, 31]]


def test_no_validation_step_leaves_the_hook_alone(tmp_path):
    trainer = make_trainer(tmp_path)
    with pytest.warns(
        UserWarning, match=r"Recorder has no validation_step\(\), so that Data.val_dataloader\(\)"
    ):
        trainer.fit(Recorder(tmp_path), datamodule=Data(tmp_path))
    assert trainer.global_step == 3


def refuse(tmp_path, message, **arguments):
    with pytest.raises(ConfigurationError, match=message):
        make_trainer(tmp_path).fit(Recorder(tmp_path), **arguments)


def test_conflicts_and_mistakes(tmp_path):
    data = Data(tmp_path)
    both = "Both loaders and datamodule=Data were passed"
    refuse(tmp_path, both, train_dataloaders=loader(), datamodule=data)
    refuse(tmp_path, both, train_dataloaders=data, val_dataloaders=loader())
    refuse(
        tmp_path,
        "datamodule is type; expected an instance of core.DataModule, not the class",
        datamodule=Data,
    )
    refuse(
        tmp_path,
        "datamodule is DataLoader; expected an instance of core.DataModule",
        datamodule=loader(),
    )
    refuse(
        tmp_path,
        r"val_dataloaders has Data .*pass a DataModule as datamodule",
        train_dataloaders=loader(),
        val_dataloaders=data,
    )


def test_nobody_has_loaders(tmp_path):
    class Empty(DataModule):
        pass

    refuse(
        tmp_path,
        r"No training loader was given. Pass train_dataloaders=..., or define train_dataloader\(\)",
    )
    refuse(tmp_path, r"Empty with no loaders has no train_dataloader\(\)", datamodule=Empty())
    with pytest.raises(
        ConfigurationError, match=r"No test loader was given; .*define test_dataloader\(\)"
    ):
        make_trainer(tmp_path).test(Recorder(tmp_path), datamodule=Empty())


def test_something_that_is_no_loader(tmp_path):
    refuse(
        tmp_path,
        r"wrap the data set in DataLoader\(dataset, batch_size=...\)",
        train_dataloaders=Numbers(3),
    )
    refuse(tmp_path, r"expected a DataLoader or an iterable of batches\.", train_dataloaders=3)
    refuse(
        tmp_path,
        "an iterable of batches: call it",
        train_dataloaders=Data(tmp_path).train_dataloader,
    )
    refuse(
        tmp_path,
        r"train_dataloaders has Numbers",
        train_dataloaders={"a": loader(), "b": Numbers(3)},
    )
    refuse(tmp_path, "train_dataloaders is an empty dict", train_dataloaders={})


def test_a_hook_that_returns_no_loader(tmp_path):
    class Wrong(DataModule):
        def __init__(self, value):
            self.value = value

        def train_dataloader(self):
            return self.value

    refuse(
        tmp_path,
        r"Wrong.train_dataloader\(\) returned None; expected a loader",
        datamodule=Wrong(None),
    )
    refuse(
        tmp_path,
        r"Wrong.train_dataloader\(\) has int 5; expected a DataLoader",
        datamodule=Wrong(5),
    )
