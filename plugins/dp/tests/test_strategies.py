"""core-dp without GPUs: what it refuses, and its own part of a step over a simulated DataParallel.

torch's DataParallel scatters with CUDA kernels only. The simulator makes real replicas of the module, as torch does,
gives each its part of the batch, and stacks what comes back.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import core_dp.strategy
from core import Capability, ConfigurationError, Fabric, Module, Trainer
from core.accelerators import CPUAccelerator
from core.strategies import DataParallelStrategy, DDP2Strategy

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)


class SimulatedDataParallel(nn.Module):
    """Two replicas on the CPU; scalars come back as one vector, as torch's gather makes it."""

    def __init__(self, module, device_ids=None):
        super().__init__()
        self.module, self.num_devices = module, 2

    def forward(self, *inputs):
        parts = [self._share(inputs, index) for index in range(self.num_devices)]
        outputs = [copy(*part) for copy, part in zip(self._replicas(), parts, strict=True)]
        return self._gather(outputs)

    def _replicas(self):
        copies = []
        for _ in range(self.num_devices):
            clones = {id(child): child._replicate_for_data_parallel() for child in self.module.modules()}
            for child in self.module.modules():
                for name, part in child._modules.items():
                    clones[id(child)]._modules[name] = clones.get(id(part))
                for name, parameter in child._parameters.items():
                    if parameter is not None:
                        setattr(clones[id(child)], name, parameter * 1)
            copies.append(clones[id(self.module)])
        return copies

    def _share(self, value, index):
        if isinstance(value, torch.Tensor):
            return value.chunk(self.num_devices)[index]
        if isinstance(value, list | tuple):
            return type(value)(self._share(item, index) for item in value)
        return value

    def _gather(self, outputs):
        if isinstance(outputs[0], dict):
            return {key: self._gather([output[key] for output in outputs]) for key in outputs[0]}
        return torch.stack(outputs) if outputs[0].dim() == 0 else torch.cat(outputs)


class Net(Module):
    def __init__(self, as_dict=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.as_dict = nn.Linear(3, 1), as_dict

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        loss = self(batch[0]).pow(2).mean()
        return {"loss": loss} if self.as_dict else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SimulatedStrategy(DataParallelStrategy):
    def check(self):
        pass


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setattr(core_dp.strategy, "DataParallel", SimulatedDataParallel)


def fit(strategy, module):
    data = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=1, max_epochs=2, **QUIET)
    trainer.fit(module, DataLoader(TensorDataset(data), batch_size=4))
    return module.state_dict()


@pytest.mark.parametrize("as_dict", [False, True])
def test_weights_equal_one_device(simulated, as_dict):
    weights = fit(SimulatedStrategy(), Net(as_dict))
    for name, expected in fit("single_device", Net(as_dict)).items():
        torch.testing.assert_close(weights[name], expected)


def test_forward_through_fabric_keeps_the_batch_together(simulated):
    fabric = Fabric(strategy=SimulatedStrategy(), accelerator="cpu", devices=1)
    module = Net()
    batch = torch.randn(6, 3)
    torch.testing.assert_close(fabric.setup(module)(batch), module(batch))


@pytest.mark.parametrize("alias", ["dp", "ddp2"])
def test_a_cpu_is_refused_and_ddp_named(alias):
    with pytest.raises(ConfigurationError, match=rf"strategy='{alias}' replicates .* 'cpu'\. Use strategy='ddp'"):
        Fabric(strategy=alias, accelerator="cpu", devices=2)


def test_dp_on_several_nodes_names_ddp2():
    strategy = DataParallelStrategy(
        accelerator=CPUAccelerator(), parallel_devices=[torch.device("cuda", 0), torch.device("cuda", 1)]
    )
    strategy.num_nodes = 2
    with pytest.raises(ConfigurationError, match=r"num_nodes=2 .* strategy='ddp2'"):
        strategy.check()


def test_values_gathered_from_devices_are_reduced_to_one():
    strategy = DataParallelStrategy()
    gathered = torch.tensor([1, 2])
    assert strategy.reduce(gathered).item() == 1.5
    assert strategy.reduce(gathered, reduce_op="sum").item() == 3
    assert strategy.reduce(gathered, reduce_op="max").item() == 2
    with pytest.raises(ConfigurationError, match="reduce_op='median': expected one of 'mean', 'sum', 'min', 'max'"):
        strategy.reduce(gathered, reduce_op="median")


def test_declared_capabilities():
    assert DataParallelStrategy().capabilities == (
        Capability.SEVERAL_MODULES
        | Capability.SEVERAL_OPTIMIZERS
        | Capability.CLIP_BY_VALUE
        | Capability.BIT_EXACT_RESUME
    )
    assert Capability.COLLECTIVES in DDP2Strategy().capabilities
    assert DDP2Strategy().num_processes_per_node == 1
