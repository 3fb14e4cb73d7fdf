"""Modules with event hooks: run when the user names them, as one more callback."""

import pickle
import sys
import types

import pytest

from core import ConfigurationError, PluginLoadError, hookimpl
from core.registry import plugin_manager
from core_training.callbacks.adapters import hook_callback
from support.fake_distributions import make_distribution
from support.small_nets import Net, batches, quiet_trainer

SOURCE = """
from core import hookimpl

heard = []

@hookimpl
def on_fit_start(trainer, module):
    heard.append(("on_fit_start", type(module).__name__))

@hookimpl
def on_train_batch_end(outputs, batch_idx):
    heard.append(("on_train_batch_end", batch_idx, outputs.ndim))
"""


def fit(**options):
    trainer = quiet_trainer(max_epochs=1, **options)
    trainer.fit(Net(), batches(2))
    return trainer


@pytest.fixture
def installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points = "[core.hooks]\nacme = acme_hooks\ndull = dull_hooks\n"
    make_distribution(
        tmp_path,
        "acme-hooks",
        entry_points_text=entry_points,
        modules={"acme_hooks": SOURCE, "dull_hooks": ""},
    )
    plugin_manager().refresh()
    yield
    sys.modules.pop("acme_hooks", None)
    monkeypatch.undo()
    plugin_manager().refresh()


def test_installed_hooks_stay_silent_until_they_are_named(installed):
    fit()
    assert "acme_hooks" not in sys.modules
    trainer = fit(callbacks="acme")
    assert sys.modules["acme_hooks"].heard == [
        ("on_fit_start", "Net"),
        ("on_train_batch_end", 0, 0),
        ("on_train_batch_end", 1, 0),
    ]
    assert trainer.events.listeners("on_train_batch_start") == []
    assert len(trainer.events.listeners("on_train_batch_end")) == 1


def test_a_failing_hook_is_attributed_to_its_plugin():
    class Broken:
        @hookimpl
        def on_train_epoch_end(self):
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck") as raised:
        fit(callbacks=hook_callback("broken", Broken()))
    assert raised.value.__notes__ == [
        "It was raised in on_train_epoch_end of the event hooks 'broken'."
    ]


def test_it_goes_to_spawned_workers(installed):
    callback = fit(callbacks="acme").callbacks[0]
    copy = pickle.loads(pickle.dumps(callback))
    assert copy.plugin is sys.modules["acme_hooks"]
    assert copy.state_key == callback.state_key == "HookPlugin:acme"


def test_neither_a_callback_nor_a_name():
    with pytest.raises(
        ConfigurationError,
        match=r"expected instances of core\.Callback, or names of installed event",
    ):
        fit(callbacks=[types.SimpleNamespace()])
    with pytest.raises(ConfigurationError, match="'nobody'"):
        fit(callbacks="nobody")


def test_a_module_without_hooks_says_so(installed):
    with pytest.raises(PluginLoadError, match=r"core\.hookimpl"):
        fit(callbacks="dull")
