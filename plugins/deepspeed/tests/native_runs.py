"""Runs that save in DeepSpeed's own layout, and go on from it."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from zero_ranks import CUT

from core import Module, Trainer
from core_deepspeed import DeepSpeedStrategy
from core_testing.ranks import QUIET


class Net(Module):
    """Notes its losses, and saves after the third step."""

    def __init__(self, path=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)
        )
        self.register_buffer("scale", torch.tensor(1.5))
        self.path, self.losses = path, []

    def training_step(self, batch, batch_idx):
        return (self.layers(batch[0]) * self.scale - batch[1]).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(self.trainer.strategy.reduce(outputs).item())
        if self.path is not None and self.trainer.global_step == 3:
            self.trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["losses"] = list(self.losses)

    def on_load_checkpoint(self, checkpoint):
        self.losses = checkpoint["losses"]

    def on_train_end(self):
        if self.trainer.is_global_zero:
            torch.save(self.losses, self.losses_file)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


class VariedNet(Net):
    """Has two groups of parameters, frozen and tied ones, and buffers that training changes."""

    def __init__(self, path=None):
        super().__init__(path)
        self.layers[1] = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(7, 7))
        self.layers[1][1].requires_grad_(False)
        self.again = torch.nn.Linear(5, 7)
        self.again.weight = self.layers[0].weight
        self.register_buffer("num_batches", torch.tensor(0))

    def training_step(self, batch, batch_idx):
        self.scale += 0.125
        self.num_batches += 1
        return super().training_step(batch, batch_idx) + self.again(batch[0]).square().mean()

    def configure_optimizers(self):
        trained = {
            name: parameter
            for name, parameter in self.named_parameters()
            if parameter.requires_grad
        }
        biases = [parameter for name, parameter in trained.items() if name.endswith("bias")]
        others = [parameter for name, parameter in trained.items() if not name.endswith("bias")]
        return torch.optim.AdamW(
            [{"params": others}, {"params": biases, "lr": 0.005, "weight_decay": 0.0}], lr=0.02
        )


def native(stage, **options):
    """The strategy of a stage, which saves in DeepSpeed's own layout."""
    config = CUT if stage == 3 else None
    return DeepSpeedStrategy(
        stage, start_method="fork", deepspeed_checkpoint="native", config=config, **options
    )


def fit(tmp_path, strategy, num_processes, *, path=None, ckpt_path=None, net=Net, **options):
    """Losses of all steps, of those before `ckpt_path` was saved too, and the state of the
    module.
    """
    module = net(path)
    module.losses_file = tmp_path / "losses"
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=num_processes,
        max_epochs=1,
        **QUIET,
        **options,
    )
    inputs = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
    data = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True).sin()), batch_size=8 // num_processes
    )
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return torch.load(module.losses_file), module.state_dict()
