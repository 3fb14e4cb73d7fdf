"""Modules: the arguments that they remember, how they are made again, and the questions that they
can ask.
"""

import copy
import enum
import inspect
import pickle
import re
import warnings
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import call, create_autospec

import pytest
import torch
from torch import nn

from core import (
    Callback,
    CheckpointCorruptedError,
    CheckpointError,
    ConfigurationError,
    DataModule,
    Fabric,
    Logger,
    Module,
    ModuleError,
    Trainer,
)
from core.checkpoint import TorchCheckpointIO
from core.strategies import SingleDeviceStrategy
from core_testing import in_one_process
from support.printed import lines_of
from support.small_nets import At, Net, batches, fit, quiet_trainer


class Sized(Net):
    def __init__(self, width=4, lr=0.1, *, name="net", betas=(0.9, 0.99), **more):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(4, width)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()


class Required(Net):
    def __init__(self, width, head):
        super().__init__()
        self.save_hyperparameters(ignore="head")
        self.layer, self.head = nn.Linear(4, width), head


def train(module, path=None, **options):
    trainer = quiet_trainer(**{"max_epochs": 1, **options})
    trainer.fit(module, batches(2))
    if path is not None:
        trainer.save_checkpoint(path)
    return trainer


# hyperparameters ----------------------------------------------------------------------------------


def test_arguments_are_collected():
    module = Sized(3, name="mine", extra=7)
    assert module.hparams == {
        "width": 3,
        "lr": 0.1,
        "name": "mine",
        "betas": (0.9, 0.99),
        "extra": 7,
    }
    module.hparams.width = 5
    module.hparams["lr"] = 1.0
    assert (module.hparams["width"], module.hparams.lr, module.hparams_initial["width"]) == (
        5,
        1.0,
        3,
    )
    with pytest.raises(
        AttributeError, match="There is no hyperparameter 'depth'; there are 'width', 'lr', 'name'"
    ):
        _ = module.hparams.depth


def test_names_are_chosen_or_ignored():
    class Saving(Net):
        def __init__(self, width, depth, *, chosen=(), ignored=()):
            super().__init__()
            self.save_hyperparameters(*chosen, ignore=["chosen", "ignored", *ignored])

    assert Saving(1, 2, chosen=["depth"]).hparams == {"depth": 2}
    assert Saving(1, 2, ignored=["depth"]).hparams == {"width": 1}
    message = r"save_hyperparameters\('widht'\): .* Did you mean 'width'\? It has width"
    with pytest.raises(ModuleError, match=message):
        Saving(1, 2, chosen=["widht"])


def test_values_are_kept_as_they_were_when_they_were_saved(tmp_path):
    class Popping(Net):
        def __init__(self, options):
            super().__init__()
            self.save_hyperparameters()
            self.kind = options.pop("kind")
            options["sizes"].append(7)

    train(Popping({"kind": "tanh", "sizes": [1]}), path := tmp_path / "a.ckpt")
    again = Popping.load_from_checkpoint(path)
    assert (again.kind, again.hparams) == ("tanh", {"options": {"kind": "tanh", "sizes": [1]}})


@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_subclass_ignores_is_left_out_of_what_its_base_saves(is_first):
    class Ignoring(Sized):
        def __init__(self, backbone, width=2):
            if is_first:
                self.save_hyperparameters(ignore="backbone")
            super().__init__(width)
            if not is_first:
                self.save_hyperparameters(ignore="backbone")

    with warnings.catch_warnings():
        # its base class saves it first
        warnings.filterwarnings("ignore", "The hyperparameter 'backbone'")
        module = Ignoring(nn.Linear(1, 1))
    assert module.hparams == {"width": 2, "lr": 0.1, "name": "net", "betas": (0.9, 0.99)}
    assert "backbone" not in module.hparams_initial


def test_arguments_of_a_class_beside_the_module_are_kept():
    class Sized:
        def __init__(self, size=3):
            super().__init__()
            self.save_hyperparameters()

    class Both(Sized, Module):
        pass

    class Named(Both):
        def __init__(self, name):
            super().__init__()

    assert Both(size=4).hparams == {"size": 4}
    assert Named("a").hparams == {"size": 3, "name": "a"}


@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_base_ignores_is_kept_of_a_subclass_that_saves_it(is_first):
    class Named(Required):
        def __init__(self, head="linear"):
            if is_first:
                self.save_hyperparameters()
            super().__init__(3, nn.Linear(3, 1))
            if not is_first:
                self.save_hyperparameters()

    assert Named().hparams == {"head": "linear", "width": 3}


@dataclass
class Config:
    width: int = 2
    lr: float = 0.1


@pytest.mark.parametrize(
    "given", [{"width": 2, "lr": 0.1}, Namespace(width=2, lr=0.1), Config()], ids=type
)
def test_one_object_with_all_of_them(given, tmp_path):
    class Configured(Net):
        def __init__(self, config):
            super().__init__()
            self.save_hyperparameters(config)
            self.layer = nn.Linear(4, self.hparams.width)

    module = Configured(given)
    assert module.hparams == {"width": 2, "lr": 0.1}
    train(module, tmp_path / "last.ckpt")
    again = Configured.load_from_checkpoint(tmp_path / "last.ckpt")
    assert again.hparams == {"width": 2, "lr": 0.1}


def test_not_called_in_init():
    module = Net()
    with pytest.raises(
        ModuleError,
        match=r"save_hyperparameters was not called in Net.__init__, .*pass the hyperparam",
    ):
        module.save_hyperparameters()
    module.save_hyperparameters({"lr": 1})
    assert module.hparams == {"lr": 1}
    with pytest.raises(
        ModuleError, match=r"Hyperparameters are int 3; expected names of arguments, or one dict"
    ):
        module.save_hyperparameters(3)


def test_one_warning_for_all_values_that_are_not_plain(tmp_path):
    layer = nn.Linear(1, 1)

    class Holding(Net):
        def __init__(self, path, layer, colour, lr=0.1):
            super().__init__()
            self.save_hyperparameters()

    class Colour(enum.Enum):
        RED = 1

    with pytest.warns(UserWarning, match="can't hold") as caught:
        module = Holding(Path("x"), layer, Colour.RED)
    (warning,) = caught
    expected = (
        r"'path' of Holding is a .*Path, 'layer' of .* a torch.*Linear, 'colour' of .* a "
        r".*Colour, .*"
    )
    assert re.search(expected + r"Pass ignore=\['path', 'layer', 'colour'\]", str(warning.message))
    assert warning.filename == __file__
    assert module.hparams.layer is layer
    train(module, tmp_path / "last.ckpt", plugins=TorchCheckpointIO())
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["hyper_parameters"] == {"lr": 0.1}
    message = r"Holding.__init__ needs 'path', which the checkpoint's .*\(lr\). Pass it: "
    with pytest.raises(ModuleError, match=message):
        Holding.load_from_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize("logs", [True, False])
def test_loggers_get_them_once(logs):
    class Noted(Net):
        def __init__(self, lr=0.1):
            super().__init__()
            self.save_hyperparameters(logger=logs)

    logger, module = create_autospec(Logger, instance=True), Noted()
    trainer = train(module, logger=logger)
    with pytest.warns(UserWarning, match="fit trains nothing"):
        trainer.fit(module, batches(2))
    assert logger.log_hyperparams.mock_calls == [call({"lr": 0.1})] * logs


# made again ---------------------------------------------------------------------------------------


def test_a_module_is_made_again(tmp_path):
    module = Sized(3, name="mine", extra=7)
    train(module, tmp_path / "last.ckpt")
    again = Sized.load_from_checkpoint(tmp_path / "last.ckpt")
    assert (type(again), again.hparams, type(again.hparams.betas)) == (Sized, module.hparams, tuple)
    assert torch.equal(again.layer.weight, module.layer.weight)


def test_arguments_come_before_what_was_saved(tmp_path):
    train(Required(2, nn.Linear(1, 1)), tmp_path / "last.ckpt")
    head = nn.Linear(1, 1)
    again = Required.load_from_checkpoint(tmp_path / "last.ckpt", head=head, map_location="cpu")
    assert again.head is head
    with pytest.raises(
        ModuleError,
        match=r"Required.__init__ needs 'head', .*\(width\). Pass it: Required.load_from_ch",
    ):
        Required.load_from_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(
        ModuleError,
        match=r"got 'haed', which Required.__init__ does not take. Did you mean 'head'\?",
    ):
        Required.load_from_checkpoint(tmp_path / "last.ckpt", haed=head)
    with pytest.raises(CheckpointError, match=r"does not fit Required. (.|\n)*size mismatch"):
        Required.load_from_checkpoint(tmp_path / "last.ckpt", head=head, width=3)


def test_weights_that_do_not_fit(tmp_path, monkeypatch):
    class Larger(Net):
        def __init__(self):
            super().__init__()
            self.more = nn.Linear(1, 1)

        def validation_step(self, batch):
            pass

    train(Net(), path := tmp_path / "last.ckpt")
    with pytest.raises(
        CheckpointError, match=r"does not fit Larger. Pass the arguments (.|\n)*Missing key"
    ):
        Larger.load_from_checkpoint(path)
    with pytest.raises(CheckpointError, match="does not fit Larger"):
        quiet_trainer().validate(Larger(), batches(1), ckpt_path=path)
    Larger.load_from_checkpoint(path, strict=False)
    monkeypatch.setattr(Larger, "strict_loading", False)
    Larger.load_from_checkpoint(path)
    quiet_trainer().validate(Larger(), batches(1), ckpt_path=path)


def test_the_modules_own_section(tmp_path):
    class Counting(Net):
        count = 0

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.count += 1

        def on_save_checkpoint(self, checkpoint):
            assert checkpoint == {}
            checkpoint["count"] = self.count

        def on_load_checkpoint(self, checkpoint):
            self.count = checkpoint["count"]

    train(Counting(), tmp_path / "last.ckpt")
    assert Counting.load_from_checkpoint(tmp_path / "last.ckpt").count == 2


def test_data_sets_in_lists_in_a_dict():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return index

    made = DataModule.from_datasets({"a": [Rows(), Rows()], "b": Rows()}, batch_size=2)
    loaders = made.train_dataloader()
    assert [len(loader) for loader in (*loaders["a"], loaders["b"])] == [1, 1, 1]


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("module", "state['module_section']['mine'][0]"),
        ("callback", "state['callbacks']['keeping']['section']['mine'][0]"),
        ("callback's state", "state['callbacks']['keeping']['state']['mine'][0]"),
        ("data module", "state['datamodule']['state']['mine'][0]"),
    ],
)
def test_an_object_in_what_a_hook_adds_is_refused_by_its_path(place, path, tmp_path):
    class Keeping(Callback):
        state_key = "keeping"

    data, module, callback = DataModule.from_datasets([torch.ones(4)]), Net(), Keeping()
    if place == "module":
        module.on_save_checkpoint = lambda checkpoint: checkpoint.update(mine=[nn.ReLU()])
    elif place == "callback":
        callback.on_save_checkpoint = lambda trainer, module, checkpoint: checkpoint.update(
            mine=[nn.ReLU()]
        )
    else:
        (callback if place == "callback's state" else data).state_dict = lambda: {
            "mine": [nn.ReLU()]
        }
    trainer = quiet_trainer(max_epochs=1, callbacks=callback)
    trainer.fit(module, datamodule=data)
    message = re.escape(path) + r" is a .*ReLU, which .* Save its state_dict\(\) instead"
    with pytest.raises(CheckpointError, match=message):
        trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


def test_large_parts_are_built_first(tmp_path):
    class Late(Net):
        def configure_model(self):
            if not hasattr(self, "late"):
                self.late = nn.Linear(4, 1)

    module = Late()
    train(module, tmp_path / "last.ckpt")
    assert torch.equal(
        Late.load_from_checkpoint(tmp_path / "last.ckpt").late.weight, module.late.weight
    )


def test_mistakes_in_loading(tmp_path):
    torch.save({"weights": 1}, tmp_path / "other.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has no digest
        with pytest.raises(
            CheckpointError, match=r"is not a checkpoint of a Trainer: it has \['weights'\]"
        ) as failure:
            Net.load_from_checkpoint(tmp_path / "other.pt")
        assert not isinstance(failure.value, CheckpointCorruptedError)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        Net.load_from_checkpoint(tmp_path / "missing.ckpt")
    with pytest.raises(
        ConfigurationError,
        match=r"makes a new module and leaves this one alone. Call it on the class: ",
    ):
        Net().load_from_checkpoint(tmp_path / "other.pt")
    with pytest.raises(
        ConfigurationError, match="map_location='gpu9': expected a device, such as 'cpu'"
    ):
        Net.load_from_checkpoint(tmp_path / "other.pt", map_location="gpu9")


# what it can ask ----------------------------------------------------------------------------------


def test_without_a_trainer():
    module = Net()
    assert (module.current_epoch, module.global_step, module.global_rank, module.local_rank) == (
        0,
        0,
        0,
        0,
    )
    assert (module.logger, module.loggers) == (None, ())
    assert (module.device, module.dtype) == (torch.device("cpu"), torch.float32)
    message = "Net is not attached to a Trainer. Call this from its steps and hooks"
    with pytest.raises(ConfigurationError, match=message):
        _ = module.trainer.global_rank
    with pytest.raises(ConfigurationError, match="Net is not attached to a Trainer"):
        module.optimizers()
    module.print("alone")


def test_who_lists_attributes_meets_no_error():
    module = Net()
    assert hasattr(module, "trainer")
    assert not module.trainer
    assert not hasattr(module.trainer, "global_rank")
    assert dict(inspect.getmembers(module))["training"]
    inspect.getmembers(Fabric(accelerator="cpu"))


@pytest.mark.filterwarnings(
    "ignore:`?torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning"
)
@pytest.mark.parametrize("has_run", [False, True])
def test_a_module_is_traced_before_and_after_a_trainer_has_run_it(has_run):
    module, batch = Net(), torch.ones(2, 4)
    module.forward = module.layer.forward
    if has_run:
        train(module)
    assert torch.equal(torch.jit.trace(module, batch)(batch), module(batch))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_copies_belong_to_nobody(copied):
    module = Sized()
    train(module)
    module.compile(backend="eager")
    again = copied(module)
    assert module.trainer is not None
    assert not again.trainer
    assert again.hparams == module.hparams


def test_freezing():
    module = Net()
    for freeze, is_trained in ((module.freeze, False), (module.unfreeze, True)):
        freeze()
        assert module.training is is_trained
        assert {parameter.requires_grad for parameter in module.parameters()} == {is_trained}


def test_parts_in_evaluation_mode_stay_there():
    class PartlyFrozen(Net):
        def on_train_batch_start(self, *_):
            modes.append((self.training, self.layer.training, self.frozen.training))

        validation_step = on_train_batch_start

    module, modes = PartlyFrozen(), []
    module.frozen = nn.Dropout().eval()
    fit(module, batches(1), batches(1), max_epochs=2)
    assert modes == [(True, True, False), (False, False, False)] * 2


def test_a_module_in_evaluation_mode_is_trained_in_training_mode():
    module = Net().eval()
    train(module)
    assert (module.training, module.layer.training) == (True, True)


def test_all_gather_and_print(capsys):
    class Gathering(Net):
        def validation_step(self, batch):
            ranks = self.all_gather(torch.tensor(float(self.global_rank)))
            self.print("ranks", ranks.flatten().tolist())

    def validate():
        loader = torch.utils.data.DataLoader(torch.ones(2, 4))
        quiet_trainer(strategy="ddp", devices=2).validate(Gathering(), loader)

    in_one_process(validate)
    assert lines_of(capsys.readouterr().out) == ["ranks [0.0, 1.0]"]


def test_ranks_give_back_what_configure_model_has_built_where_the_strategy_wants_it():
    class Built(Net):
        def configure_model(self):
            with self.trainer.strategy.init_context(empty=True):
                self.added = nn.Linear(1, 1)

        def on_train_end(self):
            nn.init.constant_(self.added.weight, 3.0)

    module, strategy = Built(), "ddp_fork_find_unused_parameters_true"
    trainer = fit(
        module,
        torch.utils.data.DataLoader(torch.ones(4, 4)),
        strategy=strategy,
        devices=2,
        precision="bf16-true",
    )
    assert torch.equal(module.added.weight, torch.tensor([[3.0]], dtype=torch.bfloat16))
    assert trainer.global_step > 0


def test_a_stage_joins_the_group_once_and_leaves_it(tmp_path):
    """A module talks to the other ranks by the Trainer's Fabric, which has joined for the stage."""

    class Counting(SingleDeviceStrategy):
        def setup_environment(self):
            calls.append("join")
            super().setup_environment()

        def teardown(self):
            calls.append("leave")
            super().teardown()

    calls = []
    gathers = At("on_train_start", lambda module: module.all_gather(torch.tensor(1.0)))
    train(Net(), tmp_path / "fitted.ckpt", strategy=Counting(), callbacks=gathers)
    assert calls == ["join", "leave"] * 2


# modes of torch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (False, False, False, False)),
        ({"deterministic": True}, (True, False, False, False)),
        ({"deterministic": "warn"}, (True, True, False, False)),
        ({"benchmark": True}, (False, False, True, False)),
        ({"detect_anomaly": True}, (False, False, False, True)),
    ],
)
def test_modes_last_as_long_as_a_stage(options, expected, monkeypatch):
    class Looking(Net):
        def on_train_batch_start(self, *_):
            self.seen = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                torch.backends.cudnn.benchmark,
                torch.is_anomaly_enabled(),
            )

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    module = Looking()
    train(module, **options)
    assert module.seen == expected
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark) == (
        False,
        False,
    )
    assert not torch.is_anomaly_enabled()


class KeepsTable(Net):
    """Its first forward computes a table, which later ones use."""

    table = None

    def training_step(self, batch):
        if self.table is None:
            self.table = torch.ones_like(batch[:1])
        return (self.layer(batch) * self.table).square().mean()

    validation_step = training_step


def test_what_the_sanity_check_has_made_is_trained_with():
    module = KeepsTable()
    fit(module, batches(2), batches(1), num_sanity_val_steps=1)
    assert not module.table.is_inference()


@pytest.mark.parametrize(
    ("inference_mode", "outcome"),
    [
        (False, nullcontext()),
        (True, pytest.raises(ModuleError, match="Pass inference_mode=False to the Trainer")),
    ],
)
def test_what_an_evaluation_before_fit_has_made_is_trained_with_or_refused(inference_mode, outcome):
    module, trainer = KeepsTable(), quiet_trainer(max_epochs=1, inference_mode=inference_mode)
    trainer.validate(module, batches(1))
    with outcome:
        trainer.fit(module, batches(2), batches(1))


def test_a_manual_backward_with_automatic_optimization():
    class Manual(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.manual_backward(loss)
            return loss

    with pytest.raises(
        ModuleError, match=r"Manual calls self.manual_backward\(loss\) with automatic optimization"
    ):
        train(Manual())


def test_an_anomaly_is_found():
    class Anomalous(Net):
        def training_step(self, batch, batch_idx):
            return (self.layer(batch) * 0.0).sqrt().sum() * 0.0

    with (
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
        pytest.raises(RuntimeError, match="returned nan"),
    ):
        train(Anomalous(), detect_anomaly=True)


def test_barebones(tmp_path):
    class Logging(Net):
        def training_step(self, batch, batch_idx=0):
            self.log("loss", 1.0)
            return super().training_step(batch, batch_idx)

        validation_step = training_step

    trainer = Trainer(accelerator="cpu", barebones=True, max_epochs=1, default_root_dir=tmp_path)
    trainer.fit(Logging(), batches(), batches())
    assert (trainer.callbacks, trainer.loggers, trainer.callback_metrics, trainer.global_step) == (
        [],
        [],
        {},
        3,
    )
    assert list(tmp_path.iterdir()) == []


def test_ranks_on_the_second_of_two_nodes(monkeypatch):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "NODE_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, num_nodes=2, logger=False)
    assert (trainer.world_size, trainer.node_rank) == (4, 1)
    with pytest.raises(ConfigurationError, match="num_nodes=0"):
        Trainer(accelerator="cpu", num_nodes=0)
