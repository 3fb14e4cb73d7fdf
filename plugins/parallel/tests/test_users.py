"""What a Trainer's user has beside the step works under pipelines: groups, schedulers, averages,
stopping, logging.
"""

import warnings

import pytest
import torch
from language import ALONE, on
from pipelines import Net, loader
from torch import nn

from core import Callback, ModuleError
from core.callbacks import EMA, EarlyStopping
from core_parallel.modules import absent
from core_testing.training import assert_equal_tensors, whole


class Grouped(Net):
    """Two groups, two schedulers, and values logged in every stage."""

    def __init__(self):
        super().__init__(noise=0.0)

    def configure_optimizers(self):
        first = [*self.embed.parameters(), self.temperature]
        others = [*self.blocks.parameters(), *self.head.parameters()]
        optimizer = torch.optim.AdamW(
            [{"params": others, "lr": 2e-2}, {"params": first, "weight_decay": 0.1}], lr=1e-2
        )
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "error"},
        }

    def on_before_optimizer_step(self, optimizer):
        self.log("norm", self.clip_gradients(optimizer, float("inf")))
        gradients = {
            f"of_{name}": one.grad.norm()
            for name, one in self.named_parameters()
            if not one.is_meta
        }
        self.log_dict(gradients, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        self.log("epochs", float(self.current_epoch))

    def on_validation_epoch_end(self):
        self.log("warmth", self.temperature)

    def test_step(self, batch, batch_idx):
        self.log_dict(
            {"error": (self(batch[0]) - batch[1]).abs().mean(), "largest": batch[0].max()},
            reduce_fx="max",
        )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, "1F1B"])
def test_what_users_have_beside_the_step_is_as_on_one_device(schedule):
    class End(Callback):
        """The weights at the end of fit, after the callbacks before it."""

        def __init__(self):
            self.weights = {}
            self.rates = []

        def on_train_epoch_end(self, trainer, module):
            self.rates += [group["lr"] for group in trainer.optimizers[0].param_groups]

        def on_fit_end(self, trainer, module):
            state = trainer.strategy.get_module_state_dict(module)
            self.weights = {name: whole(value, trainer.strategy) for name, value in state.items()}

    def use(rank):
        """Weights at the end of fit (an average), learning rates, epochs, and the values of all
        stages.
        """
        warnings.filterwarnings("ignore", "Grouped has the hook on_before_optimizer_step")
        end, module, batches = End(), Grouped(), loader(24, 8)
        stops = EarlyStopping("error", mode="max", patience=2)
        trainer = rank.trainer(max_epochs=8, callbacks=[EMA(0.8), stops, end])
        trainer.fit(module, batches, batches)
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        evaluated = [trainer.validate(module, batches), trainer.test(module, batches)]
        return (
            end.weights,
            [*end.rates, trainer.current_epoch, trainer.global_step],
            values,
            evaluated,
        )

    runs = on(in_process=True, pipeline=2, schedule=schedule).run(use)
    weights, numbers, values, evaluated = ALONE.run(use)[0]
    for of_rank in runs:
        assert of_rank[1] == pytest.approx(numbers)
        assert of_rank[2] == pytest.approx(values, abs=1e-12)
        for rows, expected in zip(of_rank[3], evaluated, strict=True):
            assert rows[0] == pytest.approx(expected[0], abs=1e-12)
    assert_equal_tensors(runs[0][0], weights, 1e-12)


def test_a_gradient_of_another_stage_is_read_by_optimizers_alone():
    class OwnOptimizer(torch.optim.Optimizer):
        """One of the user's own, with functions of its own."""

        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.5})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for one in self._learning(group["params"]):
                    one.sub_(one.grad, alpha=group["lr"])

        def _learning(self, parameters):
            return [one for one in parameters if one.grad is not None]

    here, elsewhere = nn.Linear(2, 2), nn.Linear(2, 2)
    absent.drop([elsewhere], torch.device("cpu"), {id(one) for one in elsewhere.parameters()})
    parameters = [*here.parameters(), *elsewhere.parameters()]
    for kind in (OwnOptimizer, torch.optim.SGD):
        before = here.bias.detach().clone()
        here(torch.ones(1, 2)).sum().backward()
        optimizer = kind(parameters)
        optimizer.step()
        optimizer.zero_grad()
        assert not torch.equal(here.bias, before)
        assert here.bias.grad is None
    here(torch.ones(1, 2)).sum().backward()
    assert float(
        torch.nn.utils.clip_grad_value_(parameters, 0.1) or here.bias.grad.max()
    ) == pytest.approx(0.1)
    told = (
        "The gradient of a parameter that another stage has was read.*clip_gradients.*is_meta "
        "is True"
    )
    for sums_up in (
        lambda: sum(one.grad.square().sum() for one in parameters if one.grad is not None),
        lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
    ):
        with pytest.raises(ModuleError, match=told):
            sums_up()
