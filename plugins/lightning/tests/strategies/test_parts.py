"""Plugins, strategies, environments and helpers under Lightning's names, in Lightning's form."""

import logging
import os

import pytest
import torch
from torch import nn

import core
from core.cluster import LocalEnvironment
from core_lightning.decisions.stand_ins import refusing


def test_precisions_take_lightnings_arguments(installed):
    plugins = installed("lightning.pytorch.plugins")
    mixed = plugins.MixedPrecision("bf16-mixed", "cpu")
    assert (mixed.precision, mixed.dtype, mixed.scaler) == ("bf16-mixed", torch.bfloat16, None)
    with pytest.raises(
        core.ConfigurationError,
        match=r"MixedPrecision\('32'\): expected '16-mixed' or 'bf16-mixed'",
    ):
        plugins.MixedPrecision("32", "cpu")
    with pytest.raises(
        core.ConfigurationError, match=r"HalfPrecision\('16-mixed'\): expected '16-true'"
    ):
        plugins.HalfPrecision("16-mixed")


@pytest.mark.parametrize(
    ("name", "arguments", "dtype"),
    [("DoublePrecision", (), torch.float64), ("HalfPrecision", ("bf16-true",), torch.bfloat16)],
)
def test_a_precision_is_used(installed, lit, name, arguments, dtype):
    plugin, net = getattr(installed("lightning.pytorch.plugins"), name)(*arguments), lit.Plain()
    trainer = lit.fit(net, max_epochs=1, plugins=plugin)
    assert (net.layers.weight.dtype, trainer.precision_plugin) == (dtype, plugin)


def test_an_environment_in_lightnings_form_has_its_numbers_set(installed, lit):
    environments = installed("lightning.fabric.plugins.environments")
    told = []

    class Own(environments.ClusterEnvironment):
        creates_processes_externally = False
        main_address, main_port = "127.0.0.1", 1

        @staticmethod
        def detect():
            return True

        def world_size(self):
            return 1

        global_rank = local_rank = node_rank = lambda self: 0

        def set_world_size(self, size):
            told.append(("size", size))

        def set_global_rank(self, rank):
            told.append(("rank", rank))

        def validate_settings(self, num_devices, num_nodes):
            told.append(("devices", num_devices, num_nodes))

    own = Own()
    own.set_world(world_size=2, global_rank=1, local_rank=1, node_rank=0)
    own.validate(2, 1)
    assert told == [("size", 2), ("rank", 1), ("devices", 2, 1)]
    assert not own.creates_processes
    assert lit.make_trainer(plugins=own).world_size == 1


def test_environments_detect_by_a_bool_and_cores_own_are_among_them(installed, monkeypatch):
    environments = installed("lightning.pytorch.plugins.environments")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert environments.SLURMEnvironment.detect() is False
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert environments.LightningEnvironment.detect() is True
    assert environments.SLURMEnvironment(auto_requeue=False).requeue_signal is None
    assert environments.SLURMEnvironment().requeue_signal is not None
    assert not environments.LightningEnvironment().creates_processes_externally
    assert isinstance(LocalEnvironment(), environments.LightningEnvironment)
    assert not isinstance(LocalEnvironment(), environments.SLURMEnvironment)


def test_a_program_for_slurm_runs_outside_of_it(installed, lit, monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    kind = installed("lightning.pytorch.plugins.environments").SLURMEnvironment
    trainer = lit.make_trainer(plugins=[kind(auto_requeue=False)])
    assert not isinstance(trainer.strategy.cluster_environment, kind)
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", plugins=kind())
    assert not isinstance(fabric.strategy.cluster_environment, kind)


def test_a_strategy_without_its_package_says_what_to_install_when_it_is_made(installed):
    strategies = installed("lightning.fabric.strategies")
    assert issubclass(strategies.XLAFSDPStrategy, core.Strategy)
    absent = refusing("SomeStrategy", __name__, "pip install core-some", core.Strategy)
    assert not isinstance(core.Strategy, absent)
    with pytest.raises(core.ConfigurationError, match="pip install core-some"):
        absent(devices=2)


def test_a_checkpoint_callback_has_an_absolute_folder_and_may_leave_super_out(lit, tmp_path):
    class Own(lit.pl.callbacks.ModelCheckpoint):
        def on_train_start(self, trainer, pl_module):
            self.began = trainer.global_step

    own = Own("saved", save_last=True)
    assert own.dirpath == str(tmp_path.resolve() / "saved")
    lit.fit(lit.Plain(), callbacks=[own], enable_checkpointing=True)
    assert (own.began, os.path.basename(own.last_model_path)) == (0, "last.ckpt")
    assert lit.pl.callbacks.ModelCheckpoint("memory://saved").dirpath == "memory://saved"


def test_helpers_answer_as_lightnings(installed, boring, caplog, capsys):
    helpers = installed("lightning.pytorch.utilities.model_helpers")
    assert helpers.is_overridden("training_step", boring.BoringModel())
    assert not helpers.is_overridden("on_fit_start", boring.BoringModel())
    assert not helpers.is_overridden("training_step", None)
    with pytest.raises(ValueError, match="expected a parent"):
        helpers.is_overridden("training_step", object())
    imports = installed("lightning.pytorch.utilities.imports")
    assert imports._TORCH_GREATER_EQUAL_2_6
    assert imports.package_available("torch")
    assert not imports.package_available("no_such.package")
    assert "pip install 'x>1'" in str(type(imports._RICH_AVAILABLE)("x>1"))
    shared = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    shared["b"].weight = shared["a"].weight
    tying = installed("lightning.pytorch.utilities.parameter_tying")
    assert tying.find_shared_parameters(shared) == [["a.weight", "b.weight"]]
    shared["b"].weight = nn.Parameter(torch.zeros(2, 2))
    assert (
        tying.set_shared_parameters(shared, [["a.weight", "b.weight"]])["b"].weight
        is shared["a"].weight
    )
    ranks = installed("lightning.pytorch.utilities.rank_zero")
    assert [ranks.rank_prefixed_message("a", rank) for rank in (None, 3)] == ["a", "[rank: 3] a"]
    with caplog.at_level(logging.INFO, "core"):
        cache = ranks.WarningCache()
        cache.info("once")
        cache.info("once")
    assert caplog.messages == ["once"]
    memory = installed("lightning.pytorch.utilities.memory")
    assert memory.is_oom_error(RuntimeError("CUDA out of memory."))
    assert not memory.is_oom_error(ValueError("CUDA out of memory."))
    assert not memory.recursive_detach({"a": [torch.ones(1, requires_grad=True) * 2]})["a"][
        0
    ].requires_grad
    data = installed("lightning.pytorch.utilities.data")
    assert (data.extract_batch_size({"a": torch.zeros(3, 2)}), data.sized_len(iter(()))) == (
        3,
        None,
    )
    installed("lightning.pytorch").cli_lightning_logo()
    assert "runs on core" in capsys.readouterr().out


def test_an_experiment_of_other_ranks_does_nothing(installed, monkeypatch):
    logger = installed("lightning.pytorch.loggers.logger")

    class Own:
        @property
        @logger.rank_zero_experiment
        def experiment(self):
            return [1]

    assert Own().experiment == [1]
    monkeypatch.setattr(type(core.rank_zero_only), "rank", 1)
    experiment = Own().experiment
    experiment[0] = 3
    assert experiment[0].log({"a": 1}) is None


def test_fabrics_wrappers_are_known_and_unwrapped(installed):
    fabric = installed("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    wrappers = installed("lightning.fabric.wrappers")
    module = nn.Linear(1, 1)
    wrapped = fabric.setup(module)
    assert (wrappers.is_wrapped(wrapped), wrappers.is_wrapped(module)) == (True, False)
    assert wrappers._unwrap_objects({"a": [wrapped, 3]})["a"] == [module, 3]


@pytest.mark.filterwarnings("ignore:Without has a validation_step")
def test_packages_ask_for_devices_and_loaders_by_private_names(installed, lit):
    connector = installed(
        "lightning.pytorch.trainer.connectors.accelerator_connector"
    )._AcceleratorConnector
    found = connector(accelerator="cpu", devices=2)
    assert (found._accelerator_flag, found._devices_flag, found._choose_auto_accelerator()) == (
        "cpu",
        2,
        "cpu",
    )

    class Without(lit.Plain):
        def on_train_start(self):
            self.seen.append(self.trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined())

    class With(Without):
        def val_dataloader(self):
            return lit.load()

    for kind, val, expected in (
        (With, False, True),
        (Without, False, False),
        (Without, True, True),
    ):
        net = kind()
        lit.fit(net, val, limit_val_batches=None)
        assert net.seen == [expected]


def test_checkpoints_stand_alone_in_their_folder(lit):
    lit.fit(lit.Plain(), enable_checkpointing=True)
    assert os.listdir("checkpoints") == ["epoch=1-step=8.ckpt"]


def test_callbacks_forget_a_fit_before(installed):
    callbacks = installed("lightning.pytorch.callbacks")
    stopped = {
        "wait_count": 2,
        "stopped_epoch": 3,
        "best_score": torch.tensor(0.1),
        "stopping_reason": 3,
    }
    for make, state in (
        (lambda: callbacks.EarlyStopping("loss"), stopped),
        (callbacks.WeightAveraging, {"latest_update_step": 5}),
        (
            lambda: callbacks.StochasticWeightAveraging(0.1),
            {"latest_update_epoch": 5, "average": []},
        ),
    ):
        callback = make()
        callback.load_state_dict(state)
        callback.reset_for_fit()
        assert callback.state_dict() == make().state_dict() != state
