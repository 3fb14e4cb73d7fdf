import pytest

from core import ConfigurationError, EventHooks
from core.callbacks import LambdaCallback
from support.tiny import Tiny, loader, make_trainer


def test_every_hook_gets_its_arguments(tmp_path):
    """In which order, `test_hooks_order.py` shows."""
    called = {}

    def recorder(name):
        def record(trainer, module, *arguments):
            assert isinstance(module, Tiny)
            called[name] = len(arguments)

        return record

    hooks = [name for name in vars(EventHooks) if not name.startswith("_")]

    callback = LambdaCallback(**{name: recorder(name) for name in hooks})
    trainer = make_trainer(
        tmp_path, callback, max_epochs=1, limit_train_batches=1, limit_val_batches=1
    )
    trainer.fit(Tiny(), loader(), loader())
    assert len(called) == 21
    assert [
        called[name] for name in ("setup", "on_train_batch_end", "on_validation_batch_end")
    ] == [1, 3, 4]


def test_several_without_state_in_one_trainer(tmp_path):
    called = []
    first, second = (
        LambdaCallback(on_train_end=lambda *_, n=number: called.append(n)) for number in (1, 2)
    )
    make_trainer(tmp_path, first, second, max_steps=1).fit(Tiny(), loader())
    assert called == [1, 2]


def test_what_is_no_hook(tmp_path):
    with pytest.raises(
        ConfigurationError,
        match=r"got 'on_train_stop'; expected names of hooks\. Did you mean 'on_train_",
    ):
        LambdaCallback(on_train_stop=print)
