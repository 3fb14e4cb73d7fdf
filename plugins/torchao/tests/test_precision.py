"""Linear layers with quantized weights: their numbers, the module's own weights, and refusals."""

import copy
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, Fabric, Module, Trainer
from core_torchao import QATPrecision, TorchAOPrecision, int4_weight_only, int8_weight_only
from support.tiny import make_trainer

BOUNDS = {
    "int8-weight-only": 0.02,
    "int8-dynamic": 0.03,
    "float8-weight-only": 0.06,
    "int4-weight-only": 0.15,
}
"""Of the error of the outputs, relative to their norm."""


@pytest.fixture
def quantization():
    """Imported in the process that runs these tests, and in no other that collects them."""
    return importlib.import_module("torchao.quantization")


def test_torchao_may_be_compiled_by_its_import(quantization):
    """As uv leaves it: the warnings of its source are no errors of these tests."""
    path = Path(quantization.__file__).with_name("quant_api.py")
    compile(path.read_text(encoding="utf-8"), str(path), "exec")


class Net(Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.layers(batch[0]), batch[0][:, :8])

    def predict_step(self, batch, batch_idx):
        return self.layers(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader():
    return DataLoader(
        TensorDataset(torch.randn(16, 32, generator=torch.Generator().manual_seed(1))),
        batch_size=16,
    )


def predict(tmp_path, module, precision=None, ckpt_path=None, **options):
    trainer = make_trainer(tmp_path, precision=precision, **options)
    return trainer.predict(module, loader(), ckpt_path=ckpt_path)[0]


@pytest.mark.slow
def test_a_processor_whose_products_saturate_is_refused():
    PROGRAM = """
import torch
from core import ConfigurationError, Fabric
for precision in ("int8-dynamic", "int8-weight-only"):
    try:
        Fabric(accelerator="cpu", devices=1, precision=precision).setup(torch.nn.Linear(32, 8))
    except ConfigurationError as error:
        print(error)
    else:
        print(precision, "is taken", torch._int_mm(*torch.full((2, 64, 64), 127, dtype=torch.int8))[0, 0].item())
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    first, second = ran.stdout.splitlines()
    if first == f"int8-dynamic is taken {64 * 127**2}":
        pytest.skip("products are right here without VNNI too")
    assert first.startswith(
        "precision='int8-dynamic' computes wrong numbers on this 'cpu': a product that is 64 comes "
        "out"
    )
    assert first.endswith("use precision='int8-weight-only'.")
    assert second.startswith("int8-weight-only is taken")


@pytest.mark.parametrize(("precision", "bound"), BOUNDS.items())
def test_outputs_are_as_near_as_stated(tmp_path, precision, bound):
    def adds_up():
        """Whether products of 8 bits are right on this processor."""
        return (
            int(torch._int_mm(*torch.full((2, 64, 64), 127, dtype=torch.int8))[0, 0]) == 64 * 127**2
        )

    if precision == "int8-dynamic" and not adds_up():
        pytest.skip("this processor's products of 8 bits saturate: it is refused")
    module = Net()
    before = copy.deepcopy(module.state_dict())
    exact, quantized = predict(tmp_path, module), predict(tmp_path, module, precision)
    assert 0 < (quantized - exact).norm() / exact.norm() < bound
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(predict(tmp_path, module), exact), "afterwards the module is as it was"


def test_numbers_are_those_of_torchao(tmp_path, quantization):
    """Also of weights that a checkpoint brings after the module was converted, and of those that
    change later.
    """
    saved = make_trainer(tmp_path, max_epochs=1)
    saved.fit(Net(seed=3), loader())
    path = saved.checkpoint_callbacks[0].best_model_path
    by_hand = copy.deepcopy(saved.module)
    quantization.quantize_(by_hand, quantization.Int8WeightOnlyConfig())
    inputs = next(iter(loader()))[0]
    module = Net()
    given = TorchAOPrecision(
        quantization.Int8WeightOnlyConfig(), filter_fn=lambda layer, name: name != "layers.2"
    )
    with torch.no_grad():
        assert torch.equal(
            predict(tmp_path, module, "int8-weight-only", path), by_hand.layers(inputs)
        )
        fabric = Fabric(accelerator="cpu", devices=1, precision="int8-weight-only")
        model = fabric.setup(Net().layers)
        before = model(inputs)
        model.load_state_dict(saved.module.layers.state_dict())
        assert not torch.equal(model(inputs), before)
        assert torch.equal(model(inputs), by_hand.layers(inputs))
        by_hand.layers[2] = saved.module.layers[2]
        assert torch.equal(predict(tmp_path, module, plugins=given), by_hand.layers(inputs))


def test_training_for_it(tmp_path):
    module, plain = Net(), Net()
    make_trainer(tmp_path / "aware", precision="int8-weight-only-qat", max_epochs=2).fit(
        module, loader()
    )
    make_trainer(tmp_path / "plain", max_epochs=2).fit(plain, loader())
    trained, others = module.layers[0].weight, plain.layers[0].weight
    assert type(trained) is nn.Parameter
    assert not torch.equal(trained, others)
    torch.testing.assert_close(trained, others, rtol=0.05, atol=1e-3)
    # What it computed in training is what the quantized model gives.
    rounded, quantized = (
        predict(tmp_path, module, f"int4-weight-only{suffix}") for suffix in ("", "-qat")
    )
    torch.testing.assert_close(rounded, quantized, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_is_refused_before_work(tmp_path, quantization):
    with pytest.raises(
        ConfigurationError, match="'int8-weight-only' evaluates and predicts, and can't train"
    ):
        make_trainer(tmp_path, precision="int8-weight-only").fit(Net(), loader())
    layer = nn.Linear(32, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match="Set the module up without optimizers"):
        Fabric(accelerator="cpu", devices=1, precision="int8-weight-only").setup(layer, optimizer)
    with pytest.raises(
        ConfigurationError, match=r"can't quantize the layer '1' of shape \(2, 10\) on 'cpu'"
    ):
        int4_weight_only().convert_module(nn.Sequential(nn.Linear(64, 10), nn.Linear(10, 2)))
    with pytest.raises(ConfigurationError, match="quantizes linear layers, and ReLU has none"):
        int8_weight_only().convert_module(nn.ReLU())
    with pytest.raises(ConfigurationError, match="expected a configuration of torchao's"):
        TorchAOPrecision("int8")
    with pytest.raises(ConfigurationError, match="can't quantize the layer"):
        QATPrecision(quantization.Int8WeightOnlyConfig()).convert_module(layer)
    with pytest.raises(
        ConfigurationError, match=r"quantizes weights that are whole, and FSDPStrategy"
    ):
        Trainer(accelerator="cpu", devices=1, strategy="fsdp", precision="int8-weight-only")


def test_it_goes_to_another_process():
    precision = int8_weight_only()
    precision.convert_module(nn.Linear(4, 4))
    assert pickle.loads(pickle.dumps(precision)).name == "int8-weight-only"
