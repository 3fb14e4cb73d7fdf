"""Loggers through a Trainer: which are there, what they get, and how a run ends for them."""

import csv
from argparse import Namespace
from pathlib import Path

import pytest

from core import LOGGER_REGISTRY, Callback, ConfigurationError, Fabric, Logger, Trainer
from core.contract import UnknownAliasError
from core.loggers import CSVLogger
from support.logged_net import ON_CPU, Net, loader

# The same module serves fits with validation and without.
pytestmark = pytest.mark.filterwarnings("ignore:.*and no validation loader was given")


class Recorder(Logger):
    """Keeps everything that it is told, in order."""

    def __init__(self):
        self.told = []

    def log_metrics(self, metrics, step):
        self.told.append((step, metrics))

    def log_hyperparams(self, params):
        self.told.append(("hyperparameters", dict(params)))

    def finalize(self, status):
        self.told.append(("finalize", status))


def rows(folder):
    with open(Path(folder) / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def fit(**options):
    trainer = Trainer(**{**ON_CPU, "max_epochs": 1, **options})
    trainer.fit(Net(), loader())
    return trainer


# Which loggers are there.


def test_the_default_is_a_csv_file_in_the_folder_for_everything(tmp_path):
    trainer = Trainer(
        **ON_CPU | {"enable_checkpointing": True}, max_epochs=1, default_root_dir=tmp_path
    )
    trainer.fit(Net(), loader(), loader())
    assert trainer.log_dir == str(tmp_path / "core_logs" / "version_0")
    assert any((tmp_path / "core_logs" / "version_0" / "checkpoints").iterdir())
    trainer.validate(Net(), loader())  # a later stage goes on in the same folder
    assert [path.name for path in (tmp_path / "core_logs").iterdir()] == ["version_0"]
    assert [row["val"] for row in rows(trainer.log_dir) if row["val"]] == ["2.0", "2.0"]


@pytest.mark.parametrize("logger", [False, []])
def test_without_a_logger_nothing_is_written(tmp_path, logger):
    trainer = fit(default_root_dir=tmp_path, logger=logger)
    assert (trainer.logger, trainer.log_dir) == (None, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_loggers_are_chosen_by_alias_and_all_get_the_same(tmp_path):
    mine = Recorder()
    loggers = ["csv", CSVLogger(tmp_path, "mine"), mine]
    trainer = fit(log_every_n_steps=2, default_root_dir=tmp_path, logger=loggers)
    assert isinstance(trainer.logger, CSVLogger)
    for folder in (tmp_path / "core_logs" / "version_0", tmp_path / "mine" / "version_0"):
        assert rows(folder) == [
            {"step": "2", "epoch": "0", "batch_idx": "1.0"},
            {"step": "4", "epoch": "0", "batch_idx": "3.0"},
        ]
    assert mine.told == [
        (2, {"epoch": 0.0, "batch_idx": 1.0}),
        (4, {"epoch": 0.0, "batch_idx": 3.0}),
        ("finalize", "success"),
    ]


class InFolder(Recorder):
    def __init__(self, save_dir="elsewhere"):
        super().__init__()
        self.save_dir = save_dir


@pytest.mark.parametrize("kind", [Recorder, InFolder])
def test_a_logger_that_somebody_else_has_registered(tmp_path, kind):
    LOGGER_REGISTRY.register("somebodys", kind)
    try:
        trainer = Trainer(
            **ON_CPU,
            max_epochs=1,
            log_every_n_steps=4,
            default_root_dir=tmp_path,
            logger="Somebodys",
        )
    finally:
        LOGGER_REGISTRY.remove("somebodys")
    trainer.fit(Net(), loader())
    assert trainer.logger.told[0] == (4, {"epoch": 0.0, "batch_idx": 3.0})
    assert Path(getattr(trainer.logger, "save_dir", tmp_path)) == tmp_path


def test_an_alias_that_nobody_offers():
    with pytest.raises(
        UnknownAliasError, match=r"Unknown logger 'tensorbord'\. Did you mean 'tensorboard'"
    ):
        Trainer(**ON_CPU, logger="tensorbord")


@pytest.mark.parametrize("logger", [3, [CSVLogger]])
def test_what_is_no_logger(logger):
    expected = (
        r"logger has .*; expected aliases \(.*csv.*\) or instances of core\.Logger, one or "
        r"several; True or None"
    )
    with pytest.raises(ConfigurationError, match=expected):
        Trainer(**ON_CPU, logger=logger)


# Hyperparameters.


@pytest.mark.parametrize("hparams", [{"lr": 0.1}, Namespace(lr=0.1)])
def test_hyperparameters_are_logged_once(hparams):
    mine, module = Recorder(), Net()
    module.hparams = hparams
    trainer = Trainer(**ON_CPU, max_epochs=0, logger=mine)
    trainer.fit(module, loader())
    trainer.validate(module, loader())
    other = Net()
    other.hparams = {"lr": 0.2}
    trainer.fit(other, loader())
    assert mine.told[0][0] == "hyperparameters"
    assert [told for kind, told in mine.told if kind == "hyperparameters"] == [
        {"lr": 0.1},
        {"lr": 0.2},
    ]


# How a run ends.


class Trouble(Callback):
    def __init__(self, error):
        self.error = error

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("mine"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(), "interrupted"),
    ],
)
def test_loggers_are_told_how_the_run_ended(error, status):
    mine = Recorder()
    with pytest.raises(type(error)) as raised:
        fit(logger=mine, callbacks=Trouble(error))
    assert raised.value is error
    assert error.__cause__ is None
    assert mine.told == [("finalize", status)]


@pytest.mark.parametrize("version", [None, 3])
def test_a_run_that_fails_before_it_writes_leaves_no_folder(tmp_path, version):
    logger = CSVLogger(tmp_path / "logs", version=version)
    trouble = Trouble(RuntimeError("mine"))
    trainer = Trainer(
        **{**ON_CPU, "enable_checkpointing": True}, max_epochs=1, logger=logger, callbacks=trouble
    )
    with pytest.raises(RuntimeError, match="mine"):
        trainer.fit(Net(), loader())
    assert list(tmp_path.rglob("version_*")) == []
    trainer.callbacks.remove(trouble)
    trainer.fit(Net(), loader())
    folder = tmp_path / "logs" / "core_logs" / f"version_{version or 0}"
    assert trainer.log_dir == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "metrics.csv",
        "run.json",
    ]


class Stubborn(Recorder):
    def finalize(self, status):
        super().finalize(status)
        raise OSError("the disk is full")


def test_a_loggers_own_trouble_does_not_hide_the_error(caplog):
    last = Recorder()
    with pytest.raises(RuntimeError, match="mine"):
        fit(logger=[Stubborn(), last], callbacks=Trouble(RuntimeError("mine")))
    assert last.told == [("finalize", "failed")]
    assert "Stubborn could not be finalized" in caplog.text
    assert "the disk is full" in caplog.text


def test_a_loggers_own_trouble_is_an_error_where_nothing_else_is():
    with pytest.raises(OSError, match="the disk is full"):
        fit(logger=Stubborn())


# Several processes.


def test_one_rank_writes_and_all_know_where(tmp_path):
    """The process that called `fit` is no rank at all, and learns which run it was."""

    class Telling(Net):
        """Each rank writes down which logger it has; that of a rank that writes nothing takes any
        call.
        """

        def on_train_end(self):
            logger = self.trainer.logger
            if self.global_rank == 1:
                logger.mine.add_image("x")[0] = 3
            path = Path(self.trainer.default_root_dir, f"rank{self.global_rank}")
            path.write_text(
                f"{type(logger).__name__} {logger.version} {logger.log_dir} {self.trainer.log_dir}"
            )

    logger, folder = CSVLogger(tmp_path, "exp"), tmp_path / "exp" / "version_0"
    options = {"strategy": "ddp_fork", "devices": 2, "max_epochs": 1, "log_every_n_steps": 2}
    trainer = Trainer(**{**ON_CPU, **options}, logger=logger, default_root_dir=tmp_path)
    module = Telling()
    for _ in range(2):
        trainer.fit(module, loader())
        trainer.progress.epoch = 0
    assert trainer.logger is logger
    assert (logger.version, logger.log_dir) == (0, str(folder))
    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["version_0"]
    for rank, kind in enumerate(["CSVLogger", "SilentLogger"]):
        assert (tmp_path / f"rank{rank}").read_text() == f"{kind} 0 {folder} {folder}"
    assert [row["batch_idx"] for row in rows(folder)] == ["1.0", "1.0"]


# Shared folders, and short runs.


def fit_in(folder, *, max_steps=-1, **options):
    logger = CSVLogger(folder, "exp", version=0)
    trainer = Trainer(
        **ON_CPU, max_epochs=2, max_steps=max_steps, log_every_n_steps=2, logger=logger
    )
    trainer.fit(Net(), loader(), **options)
    return trainer


def steps(folder):
    return [row["step"] for row in rows(folder / "exp" / "version_0")]


def test_a_fit_in_an_earlier_ones_folder_takes_the_place_of_its_rows(tmp_path):
    fit_in(tmp_path)
    assert steps(tmp_path) == ["2", "4", "6", "8"]
    fit_in(tmp_path, max_steps=4)
    assert steps(tmp_path) == ["2", "4"]
    fit_in(tmp_path)
    assert steps(tmp_path) == ["2", "4", "6", "8"]
    logger = CSVLogger(tmp_path, "exp", version=0)
    logger.log_metrics({"by_hand": 1.0}, 3)
    logger.save()
    assert steps(tmp_path) == ["2", "4", "6", "8", "3"]  # without a fit it adds to what is there


def test_a_resumed_fit_takes_the_place_of_the_rows_that_a_kill_has_left(tmp_path):
    fit_in(tmp_path, max_steps=4).save_checkpoint(tmp_path / "4.ckpt")
    fit_in(tmp_path)
    fit_in(tmp_path, ckpt_path=tmp_path / "4.ckpt")
    assert steps(tmp_path) == ["2", "4", "6", "8"]


def test_a_second_trainer_begins_anew_with_one_logger(tmp_path):
    logger = CSVLogger(tmp_path, "exp")
    for _ in range(2):
        fit(log_every_n_steps=2, logger=logger)
    assert steps(tmp_path) == ["2", "4"]


@pytest.mark.parametrize("make", [Trainer, Fabric])
def test_two_loggers_in_one_folder_are_refused(tmp_path, make):
    def make_with(*loggers):
        return (
            Trainer(**ON_CPU, logger=loggers)
            if make is Trainer
            else Fabric(accelerator="cpu", loggers=loggers)
        )

    logger = CSVLogger(tmp_path, "exp")
    with pytest.raises(
        ConfigurationError, match=r"Two loggers are CSVLogger\(.*'exp', 3\), and would write"
    ):
        make_with(CSVLogger(tmp_path, "exp", 3), CSVLogger(f"{tmp_path}/", "exp", 3))
    with pytest.raises(ConfigurationError, match="give them folders of their own"):
        make_with(logger, logger)
    make_with(
        logger,
        CSVLogger(tmp_path, "exp"),
        CSVLogger(tmp_path, "exp", 3),
        CSVLogger(tmp_path, "other", 3),
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("log_every", "seen"), [(None, ["8"]), (5, ["5"]), (9, ["8"]), (8, ["8"])])
def test_a_run_that_is_shorter_than_the_interval_logs_its_last_step(tmp_path, log_every, seen):
    logger = CSVLogger(tmp_path, "exp")
    fit(max_epochs=2, log_every_n_steps=log_every, logger=logger)
    assert steps(tmp_path) == seen
    assert rows(tmp_path / "exp" / "version_0")[0]["batch_idx"] == (
        "0.0" if seen == ["5"] else "3.0"
    )
