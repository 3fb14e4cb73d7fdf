"""float16, in which the engine scales the loss. Simulated where the CPU has none: DeepSpeed is told
that it has.
"""

import pytest
import torch
import zero_ranks
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, Fabric, Module

INPUTS = torch.linspace(-1, 1, 48).reshape(8, 6)
stages = pytest.mark.parametrize("stage", [1, 2, 3])


def on_two_ranks(function, stage, *args, precision="16-mixed", **options):
    return zero_ranks.on_two_ranks(
        function, *args, stage=stage, trainer={"precision": precision}, **options
    )[0]


class Net(Module):
    """Notes its losses, the scale at each step, and the dtype that its layers give; saves after the
    fifth step.
    """

    def __init__(self, path=None):
        super().__init__()
        self.path = path
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1)
        )
        self.losses, self.scales, self.dtypes = [], [], set()

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, batch_idx):
        outputs = self(batch[0])
        self.dtypes.add(outputs.dtype)
        return (outputs - batch[0].sum(1, keepdim=True).sin()).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(self.trainer.strategy.reduce(outputs.float()).item())
        self.scales.append(self.trainer.strategy.precision_plugin.state_dict().get("scale"))
        if self.path is not None and self.trainer.global_step == 5:
            self.trainer.save_checkpoint(self.path)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def fit(rank, max_steps, path=None, ckpt_path=None):
    module, data = Net(path), TensorDataset(INPUTS.repeat(8, 1))
    loader = DataLoader(data, batch_size=8 // rank.backend.data_parallel_size)
    trainer = rank.trainer(max_steps=max_steps, max_epochs=10)
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    return module.losses, module.scales, module.dtypes, module.state_dict()


@stages
@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_it_learns_what_one_device_learns_in_float32(has_float16, stage, precision):
    expected, _, _, weights = zero_ranks.on_one_device(fit, 20)
    losses, scales, dtypes, found = on_two_ranks(
        fit, stage, 20, precision=precision, initial_scale_power=8
    )
    assert losses == pytest.approx(expected, rel=2e-2)
    assert dtypes == {torch.float16}
    assert scales == [256.0] * 20
    for name, value in weights.items():
        assert found[name].dtype == (torch.float32 if precision == "16-mixed" else torch.float16)
        torch.testing.assert_close(found[name].float(), value, rtol=0, atol=2e-2)


@stages
def test_a_step_that_overflows_is_skipped_and_the_scale_lowered(has_float16, stage):
    def overflow_once(rank):
        fabric, module = rank.fabric(), Net()
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))

        def weights():
            return fabric.strategy.get_module_state_dict(module, layout="full")

        before, steps = weights(), []
        for factor in (1e6, 1.0):  # times the scale of 2 ** 16, the first has no place in float16
            fabric.backward(factor * model(INPUTS).float().square().mean())
            steps.append(fabric.strategy.optimizer_step(optimizer.optimizer))
            steps.append(all(torch.equal(value, before[name]) for name, value in weights().items()))
        scale = fabric.strategy.precision_plugin.state_dict()["scale"]
        fabric.teardown()
        return steps, scale

    steps, scale = on_two_ranks(overflow_once, stage, hysteresis=1)
    assert steps == [False, True, True, False]
    assert scale == 2.0**15


@stages
@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_the_scale_goes_on(has_float16, tmp_path, stage, precision):
    growing = {"initial_scale_power": 4, "loss_scale_window": 3, "precision": precision}
    whole, scales, *_ = on_two_ranks(fit, stage, 10, tmp_path / "halfway", **growing)
    assert scales[-1] > scales[4] > scales[0]
    losses, resumed, *_ = on_two_ranks(fit, stage, 10, None, tmp_path / "halfway", **growing)
    assert resumed == scales[5:]
    assert losses == pytest.approx(whole[5:], rel=2e-3)


@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_where_there_is_none(has_no_float16, precision):
    with pytest.raises(
        ConfigurationError,
        match=rf"precision='{precision}': DeepSpeed finds no float16 on 'cpu' here",
    ):
        Fabric(strategy="deepspeed", accelerator="cpu", devices=1, precision=precision)
