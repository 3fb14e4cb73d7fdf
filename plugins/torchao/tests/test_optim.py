"""Optimizers of torchao: states in bfloat16 resume, and states in fewer bits are refused."""

import importlib

import pytest
import torch
from float8_nets import Rounding, fit
from torch import nn

from core import CheckpointError, Fabric
from core_testing.ranks import Backend


@pytest.fixture
def eager(monkeypatch):
    """Without torch's compiler, which takes a minute for a step of torchao's."""
    monkeypatch.setattr(torch, "compile", lambda function, **unused: function)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "optimizer", ["Adam4bit", "Adam8bit", "AdamFp8", "AdamW4bit", "AdamW8bit", "AdamWFp8"]
)
def test_states_of_few_bits_are_in_no_checkpoint(tmp_path, optimizer):
    class Large(nn.Module):
        """Torchao keeps states of fewer than 4096 values as they are."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, inputs):
            return self.layer(inputs)

    module = Large()
    fabric = Fabric(accelerator="cpu", devices=1)
    of_torchao = getattr(importlib.import_module("torchao.optim"), optimizer)(module.parameters())
    module, wrapped = fabric.setup(module, of_torchao)
    fabric.backward(module(torch.ones(2, 64)).sum())
    wrapped.step()
    with pytest.raises(
        CheckpointError,
        match=r"layer.weight.*OptimState(4bit|8bit|Fp8), which a checkpoint can't hold",
    ):
        fabric.save(tmp_path / "a.ckpt", {"optimizer": wrapped})


@pytest.mark.usefixtures("eager")
def test_small_updates_are_rounded_right_on_average():
    """An update of 2**-12 is a sixteenth of the distance of values near 1: rounded to the nearest,
    it is lost.
    """

    def trained(optimizer):
        weight = nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
        stepping = optimizer([weight], lr=2**-12, weight_decay=0.0)
        for _ in range(8):
            weight.grad = torch.ones_like(weight)
            stepping.step()
        return float(weight.detach().float().mean())

    assert trained(torch.optim.AdamW) == 1.0
    assert trained(importlib.import_module("core_torchao.optim").AdamWBF16) == pytest.approx(
        1 - 8 * 2**-12, abs=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "num_processes"), [("single_device", 1), ("ddp", 2), ("fsdp", 2)]
)
def test_weights_rounded_at_random_resume_bit_by_bit(tmp_path, strategy, num_processes):
    """Also where ranks draw other numbers: replicas stay the same."""
    ranks = Backend(lambda: strategy, num_processes=num_processes)
    whole = ranks.run(fit, "bf16-true", 4, None, None, None, Rounding)
    ranks.run(fit, "bf16-true", 2, tmp_path / "half.ckpt", None, None, Rounding)
    resumed = ranks.run(fit, "bf16-true", 4, None, tmp_path / "half.ckpt", None, Rounding)
    for one, other in zip(resumed, whole, strict=True):
        assert {weight.dtype for weight in other["own"].values()} | other["states"] == {
            torch.bfloat16
        }
        assert all(torch.equal(one["own"][name], weight) for name, weight in other["own"].items())
        assert torch.equal(one["drawn"], other["drawn"])
    first, last = whole[0], whole[-1]
    if strategy == "ddp":
        assert not torch.equal(first["drawn"], last["drawn"])
        assert all(torch.equal(last["own"][name], weight) for name, weight in first["own"].items())
