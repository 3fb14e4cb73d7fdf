"""A user names the device, and trains."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Fabric, Module, Trainer
from core.checkpoint import load_checkpoint


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.devices = set()

    def training_step(self, batch, batch_idx):
        self.devices |= {str(batch[0].device), str(self.layers[0].weight.device)}
        return self.layers(batch[0]).square().mean()

    def on_train_end(self):
        assert self.devices == {str(self.device)}
        self.trained = [id(parameter) for parameter in self.parameters()]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def make_trainer(**options):
    return Trainer(
        max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **options,
    )  # fmt: skip


def trained(devices=1, **options):
    data = torch.randn(48, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    trainer, module = make_trainer(devices=devices, **options), Net()
    trainer.fit(module, DataLoader(TensorDataset(data), batch_size=8 // devices))
    return trainer, {name: value.cpu() for name, value in module.state_dict().items()}


def test_two_devices_train_as_one_cpu():
    """First of all: torch can't fork a process that has trained on a device, nor learn of one after
    it has trained.
    """
    trainer, found = trained(accelerator="sim", devices=2, strategy="sim_parallel_fork")
    assert trainer.strategy.parallel_devices == [torch.device("sim", 0)] * 2
    torch.testing.assert_close(found, trained(accelerator="cpu")[1])


def test_one_device_trains_as_one_cpu():
    trainer, found = trained(accelerator="sim")
    assert type(trainer.strategy).__name__ == "SimStrategy"
    assert trainer.strategy.root_device == torch.device("sim", 0)
    torch.testing.assert_close(found, trained(accelerator="cpu")[1])


@pytest.mark.parametrize(
    ("alias", "start_method"), [("auto", "subprocess"), ("ddp", "subprocess"), ("ddp_fork", "fork")]
)
def test_several_devices_get_their_own_strategy(alias, start_method):
    strategy = make_trainer(accelerator="sim", devices=2, strategy=alias).strategy
    assert (type(strategy).__name__, strategy.launcher_name) == (
        "SimParallelStrategy",
        start_method,
    )


def test_nobody_gets_one_without_asking():
    assert Fabric().device.type != "sim"


def test_a_tensor_of_another_device_is_refused():
    Fabric(accelerator="sim").launch()
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        torch.ones(2, device="sim") + torch.ones(2)


def loader():
    return DataLoader(TensorDataset(torch.randn(16, 4, dtype=torch.float64)), batch_size=8)


def test_a_module_returns_to_the_cpu_and_its_optimizers_too(tmp_path, monkeypatch):
    freed = []
    Fabric(accelerator="sim").launch()  # torch knows the device from here on
    monkeypatch.setattr(
        type(torch.sim), "empty_cache", lambda module: freed.append(True), raising=False
    )
    module = Net()
    for _ in range(2):
        trainer = make_trainer(accelerator="sim")
        trainer.fit(module, loader())
        assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}
        assert [id(parameter) for parameter in module.parameters()] == module.trained
    assert freed
    assert module.layers(torch.ones(2, 4, dtype=torch.float64)).shape == (2, 1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    moments = trainer.run.finished_fit.optimizers[0].state.values()
    assert {value.device.type for entry in moments for value in entry.values()} == {"cpu"}
    assert load_checkpoint(tmp_path / "a.ckpt")["optimizers"]


def test_a_module_stays_if_it_is_asked_to():
    module = Net()
    make_trainer(accelerator="sim", keep_on_device=True).fit(module, loader())
    assert {parameter.device.type for parameter in module.parameters()} == {"sim"}


def test_a_module_stays_after_an_error():
    """The device may be what has failed."""

    class Failing(Net):
        def training_step(self, batch, batch_idx):
            raise ValueError("mine")

    module = Failing()
    with pytest.raises(ValueError, match="mine"):
        make_trainer(accelerator="sim").fit(module, loader())
    assert {parameter.device.type for parameter in module.parameters()} == {"sim"}
