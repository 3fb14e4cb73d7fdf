"""Objects in checkpoints: those of classes that somebody has allowed come back, and nothing else is
executed.
"""

import dataclasses
import enum
import io
import sys
import types
from importlib import metadata

import numpy as np
import pytest
import torch

import core
from core_lightning.checkpoints import allowed_objects
from core_lightning.checkpoints.allowed_objects import (
    KEY,
    RefusedClassError,
    from_bytes,
    refusal,
    to_bytes,
)
from core_lightning.checkpoints.left_out import note_objects


class Kind(enum.Enum):
    A = "a"


@dataclasses.dataclass
class Settings:
    kind: Kind
    means: np.ndarray
    names: np.ndarray


class Runs:
    def __reduce__(self):
        return exec, ("raise SystemExit",)


@pytest.fixture
def their_package(monkeypatch):
    """A package whose entry points allow a class by name, and all of a module."""
    module = types.ModuleType("their_objects")
    for kind in (Kind, Settings):
        monkeypatch.setattr(kind, "__module__", module.__name__)
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    values = ("their_objects:Settings", "their_objects")
    found = [metadata.EntryPoint(value, value, allowed_objects.GROUP) for value in values]
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: found if group == allowed_objects.GROUP else []
    )
    allowed = allowed_objects._allowed
    allowed.cache_clear()
    yield module
    allowed.cache_clear()


def make(lit):
    class Net(lit.Plain):
        def __init__(self, settings, loss, other=None):
            super().__init__()
            self.save_hyperparameters()
            self.criterion, self.settings = loss, settings

    return Net


def settings():
    return Settings(
        Kind.A, np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(["a", None], object)
    )


@pytest.mark.filterwarnings("ignore:on_save_checkpoint of Hooked adds 'runs'")
def test_objects_of_allowed_classes_come_back(lit, their_package):
    def with_hooks(net):
        class Hooked(net):
            def on_save_checkpoint(self, checkpoint):
                checkpoint["extra"] = {"settings": self.settings, "number": 3}
                checkpoint["empty"] = torch.nn.ModuleList()
                checkpoint["runs"] = Runs()

            def on_load_checkpoint(self, checkpoint):
                self.found = (
                    checkpoint["extra"]["settings"],
                    checkpoint["hyper_parameters"]["settings"],
                )
                assert isinstance(checkpoint["empty"], torch.nn.ModuleList)
                assert KEY not in checkpoint
                assert "runs" not in checkpoint

        return Hooked

    net = with_hooks(make(lit))
    lit.fit(net(settings(), torch.nn.HuberLoss(delta=2.0))).save_checkpoint("last.ckpt")
    saved = torch.load("last.ckpt", weights_only=True)  # whatever isn't plain is bytes
    assert {"settings", "loss"}.isdisjoint(saved["hyper_parameters"])
    loaded = net.load_from_checkpoint("last.ckpt")
    assert loaded.criterion.delta == 2.0
    assert loaded.settings.kind is Kind.A
    assert loaded.settings.means.flags.f_contiguous
    assert loaded.settings.names.tolist() == ["a", None]
    first, second = loaded.found
    assert first is second, "one object stays one"
    fresh = net(settings(), torch.nn.HuberLoss())
    lit.fit(fresh, max_epochs=3, ckpt_path="last.ckpt")
    assert fresh.found[0].kind is Kind.A


def test_a_class_that_nobody_has_allowed_is_left_out_and_named(lit):
    net = make(lit)(1, torch.nn.MSELoss(), torch.nn.Linear(1, 1))
    with pytest.warns(
        UserWarning, match=r"'other' \(of torch.nn.modules.linear.Linear\) of Net are objects"
    ):
        note_objects(net, [])
    lit.fit(net).save_checkpoint("last.ckpt")
    found = make(lit).load_from_checkpoint("last.ckpt").hparams
    assert (found.keys(), found.other) == ({"settings", "loss", "other"}, None)
    assert refusal(Runs()) == "builtins.exec"
    assert "numpy.dtype" in refusal(np.zeros(1, [("field", "f4")])), (
        "no form of ours, and NumPy's isn't taken"
    )
    assert "lambda" in refusal(lambda: None)


def test_what_was_allowed_where_it_was_written_need_not_be_where_it_is_read(
    their_package, monkeypatch
):
    content = to_bytes(settings())
    monkeypatch.setattr(
        allowed_objects,
        "_allowed",
        lambda: {"core_lightning.checkpoints.allowed_objects:make_array"},
    )
    with pytest.raises(
        RefusedClassError, match=r"their_objects.Kind, their_objects.Settings aren't allowed"
    ):
        from_bytes(content)
    with torch.serialization.safe_globals([Kind, Settings]):
        assert from_bytes(content).kind is Kind.A, "as a program allows it by torch's own function"


def test_arrays_of_files_from_before_the_function_moved_are_read(monkeypatch):
    before = "core_lightning.allowed_objects"
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, before, allowed_objects)
        patched.setattr(allowed_objects.make_array, "__module__", before)
        content = to_bytes(np.arange(3))
    assert before.encode() in content
    assert from_bytes(content).tolist() == [0, 1, 2]


def test_a_forged_section_executes_nothing():
    forged = io.BytesIO()
    torch.save(Runs(), forged)
    with pytest.raises(core.CheckpointError, match=r"Objects of builtins.exec aren't allowed"):
        from_bytes(forged.getvalue())


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 0)), np.array(3), np.float32(2), np.array(["2020"], "M8[s]"), b"", range(2)],
    ids=repr,
)
def test_arrays_and_plain_objects_come_back(value):
    back = from_bytes(to_bytes(value))
    assert type(back) is type(value)
    assert np.array_equal(back, value)
    assert getattr(back, "dtype", None) == getattr(value, "dtype", None)
