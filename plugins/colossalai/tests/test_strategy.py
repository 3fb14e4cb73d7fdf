"""core-colossalai beyond the kit: options as Colossal-AI names them, refusals before work, the
recipe.
"""

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from core import ConfigurationError, Fabric, PluginLoadError, Trainer
from core.strategies import ColossalAIStrategy
from core_colossalai import library, options, refusals

ON_CPU = {"accelerator": "cpu", "devices": 2}
PLUGINS = list(options.OF_PLUGIN)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_options_are_those_that_colossalai_documents(plugin):
    text = library.plugin_class(plugin).__doc__.partition("Args:")[2]
    assert (
        set(re.findall(r"^        (\w+) \(", text, re.MULTILINE))
        | ({"memstats"} & options.OF_PLUGIN[plugin])
        == (options.OF_PLUGIN[plugin])
    )


def test_each_option_is_described():
    described = ColossalAIStrategy.__init__.__doc__
    assert all(
        f"    {name}: " in described for names in options.OF_PLUGIN.values() for name in names
    )


@pytest.mark.parametrize("plugin", ["low_level_zero", "gemini", "hybrid_parallel"])
def test_what_needs_gpus_is_refused_before_work(plugin):
    with pytest.raises(
        ConfigurationError,
        match=rf"plugin='{plugin}' needs GPUs, and this run is on 'cpu'.*torch_ddp",
    ):
        Trainer(strategy=ColossalAIStrategy(plugin=plugin), **ON_CPU)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"plugin": "zero"}, r"plugin='zero': expected one of 'torch_ddp', 'low_level_zero'"),
        (
            {"stage": 1},
            r"'stage' is an option of plugin='low_level_zero', and plugin='torch_ddp' hasn't it",
        ),
        ({"bucket_cap": 25}, r"no option 'bucket_cap'.*Did you mean 'bucket_cap_mb'"),
        ({"plugin": "low_level_zero", "stage": 3}, r"stage=3: expected 1 or 2"),
        ({"plugin": "low_level_zero", "norm_type": 1.0}, r"norm_type=1\.0: expected 2\.0"),
        (
            {"plugin": "low_level_zero", "max_norm": -1},
            r"max_norm=-1: expected a number of at least 0",
        ),
        (
            {"plugin": "low_level_zero", "initial_scale": 0},
            r"initial_scale=0: expected a number above 0",
        ),
        (
            {"plugin": "low_level_zero", "cpu_offload": "yes"},
            r"cpu_offload='yes': expected True or False",
        ),
        (
            {"plugin": "low_level_zero", "precision": "fp64"},
            r"precision='fp64': expected 'fp16' or 'bf16' or 'fp32'",
        ),
        (
            {"plugin": "gemini", "shard_param_frac": 2},
            r"shard_param_frac=2: expected a share, from 0 to 1",
        ),
        ({"plugin": "hybrid_parallel", "tp_size": 1.5}, r"tp_size=1\.5: expected a whole number"),
        ({"start_method": "thread"}, r"start_method='thread': expected one of 'subprocess'"),
    ],
)
def test_options_that_cannot_work_are_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        ColossalAIStrategy(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"plugin": "hybrid_parallel", "pp_size": 2},
            r"pp_size=2: .*pipeline calls a model's forward",
        ),
        (
            {"plugin": "hybrid_parallel", "tp_size": 3},
            r"tp_size=3 doesn't divide the number of ranks, 4",
        ),
        (
            {"plugin": "low_level_zero", "extra_dp_size": 8},
            r"extra_dp_size=8 doesn't divide the number of ranks",
        ),
        (
            {"plugin": "hybrid_parallel", "sp_size": 2},
            r"sp_size=2 has no effect without enable_sequence_parallelism",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(given, message):
    strategy = ColossalAIStrategy(**given)
    with pytest.raises(ConfigurationError, match=message):
        refusals.refuse_sizes(strategy.plugin, strategy.options, 4)


@pytest.mark.parametrize(
    ("plugin", "given", "precision", "message"),
    [
        ("gemini", {}, "32-true", r"plugin='gemini' computes in '16-mixed' or 'bf16-mixed' only"),
        ("hybrid_parallel", {"zero_stage": 1}, "32-true", r"zero_stage=1 computes in '16-mixed'"),
    ],
)
def test_formats_that_a_plugin_lacks_are_refused(plugin, given, precision, message):
    strategy = ColossalAIStrategy(plugin=plugin, **given)
    with pytest.raises(ConfigurationError, match=message):
        refusals.refuse_precision(plugin, strategy.options, precision)


def test_a_precision_that_zero_lacks_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"precision='64-true': Colossal-AI's ZeRO.*'32-true'"
    ):
        Fabric(strategy=ColossalAIStrategy(plugin="low_level_zero"), precision="64-true", **ON_CPU)


def test_eight_bits_need_gpus():
    with pytest.raises(ConfigurationError, match=r"fp8_communication=True needs GPUs"):
        Fabric(strategy=ColossalAIStrategy(fp8_communication=True), **ON_CPU)


def _not_found(name):
    raise importlib.metadata.PackageNotFoundError(name)


def _another_release(name):
    return "0.4.0"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (_not_found, "which is not installed"),
        (_another_release, r"needs Colossal-AI 0\.5\.0, and 0\.4\.0 is installed"),
    ],
)
def test_the_error_has_the_recipe(monkeypatch, version, message):
    monkeypatch.setattr("core_colossalai.library.version", version)
    with pytest.raises(PluginLoadError, match=message) as raised:
        Fabric(strategy="colossalai", **ON_CPU)
    assert "pip install --no-deps colossalai==0.5.0" in str(raised.value)
    assert "transformers==4.51.3" in str(raised.value)


def test_an_import_that_fails_has_the_recipe_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "colossalai.booster.plugin", None)
    with pytest.raises(
        PluginLoadError, match=r"can't be imported: ModuleNotFoundError(?s:.*)pip install --no-deps"
    ):
        Fabric(strategy="colossalai", **ON_CPU)


def test_batch_norm_is_refused_on_a_cpu():
    fabric = Fabric(strategy="colossalai", accelerator="cpu", devices=1)
    fabric.launch()
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(
        ConfigurationError, match=r"'1' is a BatchNorm1d.*SyncBatchNorm.*strategy='ddp'"
    ):
        fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.teardown()


@pytest.mark.parametrize(
    ("module", "optimizer", "message"),
    [
        (lambda: nn.Linear(2, 2), torch.optim.LBFGS, "LBFGS looks at whole tensors"),
        (
            lambda: nn.Linear(2, 2).double(),
            torch.optim.SGD,
            "'weight' is float64|'bias' is float64",
        ),
        (lambda: nn.Linear(2, 2).requires_grad_(False), torch.optim.SGD, "no parameter is trained"),
    ],
)
def test_what_zero_would_train_wrongly_is_refused(module, optimizer, message):
    made = module()
    with pytest.raises(ConfigurationError, match=message):
        refusals.refuse_cut(made, optimizer(made.parameters(), lr=0.1))


def test_importing_it_leaves_the_environment():
    program = """if True:
        import os
        from core_colossalai import library
        library.load()
        assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ
    """
    variables = {
        name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"
    }
    subprocess.run([sys.executable, "-c", program], env=variables, check=True, timeout=240)
