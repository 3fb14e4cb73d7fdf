"""Gradients by hand under a strategy that doesn't have them whole before the step."""

import pytest
import torch

from core import Capability
from core.callbacks import LambdaCallback
from core.strategies import SingleDeviceStrategy
from support.small_nets import Net, batches, quiet_trainer


class Parted(SingleDeviceStrategy):
    capabilities = SingleDeviceStrategy().capabilities | Capability.OWNS_GRADIENTS


class ByHand(Net):
    def on_before_optimizer_step(self, optimizer):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)


def fit(strategy, module, *callbacks):
    quiet_trainer(strategy=strategy(), max_epochs=2, callbacks=[*callbacks]).fit(
        module(), batches()
    )


@pytest.mark.parametrize(
    ("module", "callbacks", "name"),
    [
        (ByHand, (), "ByHand"),
        (Net, (LambdaCallback(on_before_optimizer_step=print),), "LambdaCallback"),
    ],
)
def test_a_hook_that_may_read_gradients_is_warned_of_once(module, callbacks, name):
    message = (
        rf"{name} has the hook on_before_optimizer_step, and under Parted gradients aren't whole"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        fit(Parted, module, *callbacks)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(("strategy", "module"), [(SingleDeviceStrategy, ByHand), (Parted, Net)])
def test_others_are_not(strategy, module):
    fit(strategy, module)  # a warning is an error
