"""Lightning's names: what they lead to, and that nothing is in the way of Lightning itself."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import types

import pytest
import torch

import core
import core_lightning
from core_lightning.decisions import differences, stand_ins
from core_lightning.names import modules as names
from core_lightning.utilities.gradients import grad_norm


def test_every_name_leads_somewhere(installed):
    for module, found in names.MODULES.items():
        imported = installed(module)
        assert sorted(found) == imported.__all__
        for name in imported.__all__:
            if name not in (
                "DeepSpeedStrategy",
                "FSDPStrategy",
                "ModelParallelStrategy",
                "DDPStrategy",
            ):
                getattr(imported, name)  # those are of packages that may not be installed


def test_the_three_roots_are_one_and_the_classes_are_cores(installed):
    lightning, fabric = installed("lightning"), installed("lightning_fabric")
    assert installed("pytorch_lightning.callbacks.early_stopping") is installed(
        "lightning.pytorch.callbacks.early_stopping"
    )
    assert installed("pytorch_lightning").Trainer is lightning.Trainer is lightning.pytorch.Trainer
    assert issubclass(fabric.Fabric, core.Fabric)
    assert issubclass(lightning.LightningModule, core.Module)
    assert lightning.pytorch.trainer.states.TrainerFn.FITTING == "fit"
    assert lightning.__version__ == names.VERSION


def test_what_is_not_there_says_where_to_look(installed):
    with pytest.raises(
        ModuleNotFoundError, match=r"no module 'lightning.pytorch.nothing'; docs/lightning.md says"
    ):
        installed("lightning.pytorch.nothing")
    with pytest.raises(
        AttributeError, match=r"no 'lightning.pytorch.callbacks.Nothing'; docs/lightning.md"
    ):
        _ = installed("lightning.pytorch.callbacks").Nothing


def test_what_has_no_counterpart_can_be_imported_and_says_so_when_it_is_made(installed):
    kind = installed("lightning.pytorch.callbacks").SpikeDetection
    own = type("Own", (kind,), {})
    with pytest.raises(
        core.ConfigurationError,
        match=r"SpikeDetection is not on core. EarlyStopping\(check_fin",
    ):
        own(window=3)


def test_each_name_with_advice_can_be_imported(installed):
    leads = {target for found in names.MODULES.values() for target in found.values()}
    assert {f"{names.STAND_INS}:{name}" for name in stand_ins._ADVICE} <= leads
    parsing = installed("lightning.pytorch.utilities.parsing")
    with pytest.raises(core.ConfigurationError, match="Look at the module, its hparams"):
        parsing.lightning_getattr(torch.nn.Linear(1, 1), "bias")


def test_a_bar_of_the_programs_own_can_be_made_of_tqdms(installed):
    pytest.importorskip("tqdm")
    bar = installed("lightning.pytorch.callbacks.progress.tqdm_progress").Tqdm(disable=True)
    assert bar.disable


def test_lightning_that_was_imported_before_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setitem(sys.modules, "pytorch_lightning", types.ModuleType("pytorch_lightning"))
    with pytest.raises(core.ConfigurationError, match="Choose one of the two"):
        core_lightning.install()


def test_nothing_is_in_the_way_before_install_is_called():
    """In a new interpreter: neither the package nor its import takes a name or imports torch;
    nothing draws later.
    """
    check = (
        "import sys, core_lightning, importlib.util as u; "
        "print([n for n in ('lightning', 'pytorch_lightning', 'torch') if n in sys.modules], "
        "len([f for f in sys.meta_path if 'core_lightning' in type(f).__module__])); "
        "core_lightning.install(); import random; random.seed(0); import rich.style; "
        "print(random.random())"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    # what a seed is followed by, also with rich
    assert done.stdout.split() == ["[]", "0", "0.8444218515250481"]


def test_a_summary_and_a_file_system_are_what_programs_ask_for(installed, tmp_path):
    summarize = installed("pytorch_lightning.utilities.model_summary").summarize
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1).requires_grad_(False))
    summary = summarize(module, max_depth=1)
    assert (summary.layer_names, summary.param_nums) == (["0", "1"], [9, 4])
    assert (summary.total_parameters, summary.trainable_parameters) == (13, 9)
    assert str(summary).splitlines()[1:] == [
        "0     Linear  9",
        "1     Linear  4",
        "9 of 13 parameters are trained",
    ]
    assert (
        installed("lightning.fabric.utilities.cloud_io")
        .get_filesystem(tmp_path)
        .isdir(str(tmp_path))
    )


def test_a_difference_is_told_once_and_at_the_line_that_meets_it():
    with pytest.warns(
        UserWarning, match="Another order. See docs/coming-from-lightning.md."
    ) as told:
        list(map(differences.note, ["Another order."] * 2))
    assert [each.filename for each in told] == [__file__]


def test_a_missing_logger_is_an_error_when_it_is_made_which_programs_catch_as_lightnings(
    installed, monkeypatch
):
    loggers = installed("lightning.pytorch.loggers")
    monkeypatch.setattr("core_lightning.loggers.service_loggers.find_spec", lambda name: None)
    with pytest.raises(core.ConfigurationError, match="tensorboard") as missing:
        loggers.TensorBoardLogger("logs", default_hp_metric=False)
    assert isinstance(missing.value, ModuleNotFoundError)


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="pip install tensorboard"
)
def test_the_tensorboard_logger_takes_lightnings_arguments(installed, tmp_path):
    kind = installed("lightning.pytorch.loggers").TensorBoardLogger
    logger = kind(tmp_path, log_graph=False, default_hp_metric=False, prefix="run", flush_secs=1)
    assert isinstance(logger, kind)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.finalize("success")
    (events,) = (tmp_path / "lightning_logs" / "version_0").iterdir()
    assert b"run-loss" in events.read_bytes()
    with pytest.raises(core.ConfigurationError, match="add_graph"):
        kind(tmp_path, log_graph=True)


def test_the_name_of_a_checkpoint_is_lightnings(installed):
    kind = installed("lightning.pytorch.callbacks").ModelCheckpoint
    named = kind("/x", "{epoch:02d}-{val_loss:.2f}-{missing:d}")
    values = {"epoch": 3, "val_loss": torch.tensor(0.1234)}
    assert named.format_checkpoint_name(values) == "/x/epoch=03-val_loss=0.12-missing=0.ckpt"
    assert (
        named.format_checkpoint_name(values, "{epoch}", ver=2, prefix="p") == "/x/p-epoch=3-v2.ckpt"
    )
    bare = kind(filename="a/{epoch}_{step}", auto_insert_metric_name=False)
    assert bare.format_checkpoint_name({"epoch": 1, "step": 2}) == "a/1_2.ckpt"


def test_what_rank_zero_says_is_heard(tmp_path):
    """In a new interpreter: pytest has handlers of its own."""
    program = (
        "import core_lightning; core_lightning.install(); from lightning.pytorch.utilities import "
        "*; rank_zero_info('heard'); import logging; "
        "logging.getLogger('lightning.fabric').setLevel(logging.ERROR); rank_zero_info('unheard')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "heard\n"


def test_profilers_take_lightnings_arguments(installed):
    profilers = installed("lightning.pytorch.profilers")
    profilers.SimpleProfiler(".", "name", extended=False)
    profilers.AdvancedProfiler(filename=None, line_count_restriction=3)
    with pytest.raises(core.ConfigurationError, match="Pass an int or"):
        profilers.AdvancedProfiler(line_count_restriction=0.5)


def test_norms_of_gradients_in_parts_are_those_of_all_parts():
    class Partial:
        def full_tensor(self):
            return torch.tensor(4.0)

    parted = types.SimpleNamespace(
        grad=types.SimpleNamespace(data=types.SimpleNamespace(norm=lambda power: Partial()))
    )
    whole = types.SimpleNamespace(grad=torch.tensor([3.0]))
    module = types.SimpleNamespace(named_parameters=lambda: [("parted", parted), ("whole", whole)])
    norms = grad_norm(module, 2)
    assert {name: float(norm) for name, norm in norms.items()} == {
        "grad_2.0_norm/parted": 4.0,
        "grad_2.0_norm/whole": 3.0,
        "grad_2.0_norm_total": 5.0,
    }


def test_lightnings_release_is_found_among_distributions(installed):
    for name in ("lightning", "pytorch-lightning"):
        assert importlib.metadata.version(name) == names.VERSION


@pytest.mark.filterwarnings("ignore:core trains in Lightning's place")
def test_packages_add_to_a_trainer(lit, monkeypatch):
    added = core.Callback()
    point = types.SimpleNamespace(load=lambda: lambda: [added])
    monkeypatch.setattr(
        "core_lightning.trainer.outside.metadata.entry_points", lambda group: [point]
    )
    assert lit.make_trainer().callbacks == [added]
