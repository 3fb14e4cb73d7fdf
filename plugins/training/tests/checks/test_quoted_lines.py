"""Warnings and errors that lead to the user's own line: the method that they are about, or the
call.
"""

import inspect
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from core import ModuleError
from core_training.settings.warn_at import warn_at
from support.small_nets import Net, batches, fit, quiet_trainer


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("on_train_epoch_strat", "is not a hook"),
        ("configure_optimizers", "returned no optimizer"),
        ("training_step", "returned a loss of nan"),
    ],
)
def test_a_warning_quotes_the_method_that_it_is_about(method, text):
    class Misspelt(Net):
        def on_train_epoch_strat(self):
            pass

    class NoOptimizer(Net):
        def configure_optimizers(self):
            return None

    class NotANumber(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * float("nan")

    (kind,) = (each for each in (Misspelt, NoOptimizer, NotANumber) if method in vars(each))
    with pytest.warns(UserWarning, match=text) as caught:
        fit(kind())
    (warning,) = (each for each in caught if text in str(each.message))
    assert warning.filename == __file__
    assert warning.lineno == inspect.getsourcelines(getattr(kind, method))[1]


class Logging(Net):
    def training_step(self, batch, batch_idx):
        self.log("train_loss", float("inf"))
        return super().training_step(batch, batch_idx)


class Validating(Net):
    def validation_step(self, batch, batch_idx):
        pass


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Logging, "The logged loss 'train_loss' is inf"),
        (Validating, "The validation loader shuffles"),
    ],
)
def test_without_a_method_the_call_is_quoted(kind, text):
    loaders = [batches()] + [DataLoader([torch.ones(4)] * 2, shuffle=True)] * (kind is Validating)
    with pytest.warns(UserWarning, match=text) as caught:
        quiet_trainer(max_epochs=1).fit(kind(), *loaders)
    assert {each.filename for each in caught if text in str(each.message)} == {__file__}


def test_a_wrapped_function_is_quoted_where_it_was_written():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_at(torch.no_grad()(batches), "it")
        warn_at(print, "no code of its own")
    assert [each.filename for each in caught] == [inspect.getsourcefile(batches), __file__]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": 1.0}, r"got a dict as its name; .* self\.log_dict\(\{\.\.\.\}\) records several"),
        (torch.ones(()), r"got a Tensor as its name; .* self\.log\('loss', loss\) records one"),
    ],
)
def test_what_was_meant_by_a_name_is_named(given, message):
    module = Net()
    module.training_step = lambda batch: module.log(given)
    with pytest.raises(ModuleError, match=message):
        fit(module)
