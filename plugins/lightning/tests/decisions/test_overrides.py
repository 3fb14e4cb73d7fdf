"""A subclass that overrides what nothing calls here is refused, with the public way."""

import pytest

import core


@pytest.mark.parametrize(
    ("base", "name", "way"),
    [
        ("ModelCheckpoint", "_update_best_and_save", "trainer.save_checkpoint"),
        ("ModelCheckpoint", "_save_checkpoint", "trainer.save_checkpoint"),
        ("StochasticWeightAveraging", "transfer_weights", "avg_fn"),
    ],
)
def test_a_subclass_is_refused_by_the_name_of_the_method(pl, base, name, way):
    with pytest.warns(
        UserWarning, match=f"Own{base}{name} overrides {name}, which nothing calls here"
    ):
        own = type(
            f"Own{base}{name}", (getattr(pl.callbacks, base),), {name: lambda self, *_: None}
        )
    with pytest.raises(core.ConfigurationError, match=way):
        own()


def test_private_methods_of_early_stopping_are_called(pl):
    class Counted(pl.callbacks.EarlyStopping):
        checks = 0

        def _run_early_stopping_check(self, trainer):
            Counted.checks += 1

    stopping = Counted("loss")
    stopping._check_on_train_epoch_end = True
    trainer = type("T", (), {"stage": "fit", "sanity_checking": False})()
    stopping.on_train_epoch_end(trainer, None)
    assert Counted.checks == 1
