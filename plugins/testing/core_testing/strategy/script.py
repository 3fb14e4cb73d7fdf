"""A script, as a user writes and starts it: with the strategy's own launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from core.registry import IN_PROCESS
from core_testing.marks import of_processes, of_trainer
from core_testing.programs import PRELOAD
from core_testing.scripts import run_forked, run_script
from core_testing.strategy.base import StrategySuite

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import json, sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.checkpoint import gather_whole


class Net(Module):
    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 1).double().to(dtype)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    options, dtype, batch_size, out = json.loads(sys.argv[1])
    dtype = getattr(torch, dtype)
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    module = Net(dtype)
    trainer = Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False, **options)
    trainer.fit(module, DataLoader(TensorDataset(data), batch_size=batch_size))
    weights = {name: (gather_whole(value) if hasattr(value, "full_tensor") else value).cpu()
               for name, value in module.state_dict().items()}
    if trainer.is_global_zero:
        torch.save(weights, out)


if __name__ == "__main__":
    main()
"""  # noqa: E501
_BATCH_SIZE = 8
_TIMEOUT_S = 180
_SINGLE_PRECISION = 1e-5


class ScriptTests(StrategySuite):
    """The one test that starts processes as users do."""

    @of_processes("a launch")
    @of_trainer
    def test_a_script_trains(self, folder: Path) -> None:
        """`python train.py` with this alias ends with code 0 and the weights of one device, and
        leaves no process.
        """
        if self.registry.spec(self.alias).provider == IN_PROCESS:
            pytest.skip(f"{self.alias} is known to this process only")
        if self.options or self.trainer_options:
            pytest.skip(
                f"{self.alias} is tested with options, and a script would have to write them down"
            )
        found = self._run_script(folder)
        expected = self.alone(
            _train_by_hand
        )  # torch learns of no device after the first backward of a process
        weights = {name.removeprefix("layer."): value for name, value in found.items()}
        self.assert_weights_like_one_device(
            weights, expected.state_dict(), max(self.tolerance, _SINGLE_PRECISION)
        )

    def _run_script(self, folder: Path) -> dict[str, Any]:
        out = folder / "weights"
        options = {
            "strategy": self.alias,
            "accelerator": self.accelerator,
            "devices": self.num_devices or self.num_processes,
        }
        arguments = [
            options,
            str(self.dtype).removeprefix("torch."),
            _BATCH_SIZE // self.shares,
            str(out),
        ]
        script = folder / "train.py", _PROGRAM, arguments
        if self.new_interpreter:
            done = run_script(*script, timeout_s=_TIMEOUT_S)
        else:
            done = run_forked(
                *script, timeout_s=_TIMEOUT_S, preload=",".join((PRELOAD, *self.heavy_modules))
            )
        assert done.returncode == 0, f"the script ended with code {done.returncode}:\n{done.stderr}"
        weights: dict[str, Any] = torch.load(out, map_location="cpu", weights_only=True)
        return weights


def _train_by_hand() -> nn.Linear:
    """The script's computation, without core."""
    torch.manual_seed(1)
    layer = nn.Linear(4, 1).double()
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for batch in [*data.split(_BATCH_SIZE)] * 2:
        optimizer.zero_grad()
        layer(batch).square().mean().backward()
        optimizer.step()
    return layer
