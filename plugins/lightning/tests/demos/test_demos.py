"""The demos' models, with the weights that Lightning 2.6.6 and torch 2.13.0 gave for the same seeds
on a CPU.
"""

import pytest
import torch
from torch.testing import assert_close

pytestmark = pytest.mark.numbers


def total(module):
    return sum(float(parameter.detach().double().abs().sum()) for parameter in module.parameters())


def close(found, expected):
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sanity_steps", [2, 0])
@pytest.mark.parametrize(
    ("steps_itself", "weights"), [(False, 7.957848420832306), (True, 9.687233208213001)]
)
def test_random_loaders_of_a_module_are_made_in_lightnings_order(
    lit, boring, steps_itself, weights, sanity_steps
):
    class StepsItself(boring.BoringModel):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer, loss = self.optimizers(), self.step(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    torch.manual_seed(1)
    module = StepsItself() if steps_itself else boring.BoringModel()
    limits = {
        "limit_train_batches": 3,
        "limit_val_batches": 2,
        "num_sanity_val_steps": sanity_steps,
    }
    lit.make_trainer(max_epochs=2, **limits).fit(module)
    close(total(module), weights)
    assert {"train_dataloader", "val_dataloader"} & module.__dict__.keys() == set()


def test_a_hook_that_an_instance_has_is_there_after_fit(lit):
    module = lit.Plain()
    module.val_dataloader = own = lit.load
    lit.fit(module, val=False, limit_val_batches=1)
    assert module.val_dataloader is own


def test_data_modules_give_lightnings_weights(lit, boring):
    torch.manual_seed(1)
    module, data = boring.BoringModel(), boring.BoringDataModule()
    lit.make_trainer(max_epochs=1, num_sanity_val_steps=2).fit(module, datamodule=data)
    close(total(module), 819.3901386745274)


@pytest.mark.parametrize(
    ("options", "weights", "validated"),
    [
        ({}, 7.632642733631656, [7.646622627027682, 7.632642733631656]),
        ({"decay": 0.5}, 8.036485591437668, [7.931450387462974, 8.036485591437668]),
        (
            {"decay": 0.5, "update_every_n_steps": 2, "update_starting_at_step": 3},
            8.39452307857573,
            [8.944963235793693, 8.39452307857573],
        ),
        (
            {"decay": 0.5, "update_starting_at_step": 5, "update_starting_at_epoch": 0},
            7.957058142637834,
            None,
        ),
    ],
)
def test_the_exponential_average_is_lightnings(lit, boring, options, weights, validated):
    seen = []

    class Net(boring.BoringModel):
        def validation_step(self, batch, batch_idx):
            seen.append(total(self))

    torch.manual_seed(1)
    module = Net()
    average = lit.pl.callbacks.EMAWeightAveraging(**options)
    lit.make_trainer(
        max_epochs=2, callbacks=[average], limit_train_batches=5, limit_val_batches=1
    ).fit(module)
    close(total(module), weights)
    assert validated is None or seen == pytest.approx(validated, rel=1e-6)


def test_an_example_is_given_to_forward_as_often_as_lightnings_summary_gives_it(lit, boring):
    class Net(boring.BoringModel):
        example_input_array = torch.zeros(2, 32)

        def forward(self, x):
            return self.layer(x + torch.rand(1))

    torch.manual_seed(1)
    module, rows = Net(), torch.randn(4, 32)
    trainer = lit.make_trainer(max_epochs=1, enable_model_summary=True, num_sanity_val_steps=2)
    trainer.fit(module, torch.utils.data.DataLoader(rows), torch.utils.data.DataLoader(rows))
    close(total(module), 17.456224196590483)


def test_half_precision_on_a_cpu_is_bfloat16_as_under_lightning(lit, monkeypatch):
    monkeypatch.setattr(
        "core_lightning.decisions.differences._noted", set()
    )  # said once in a process
    with pytest.warns(UserWarning, match="bf16-mixed on a CPU"):
        trainer = lit.make_trainer(precision="16-mixed")
    assert trainer.precision_plugin.name == "bf16-mixed"
