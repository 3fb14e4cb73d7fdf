import pytest
import torch

from core.callbacks import EMA, LambdaCallback, OnExceptionCheckpoint
from core.checkpoint import load_checkpoint
from support.small_nets import At
from support.tiny import Tiny, loader, make_trainer


def fit(root, module, *callbacks, ckpt_path=None, **options):
    trainer = make_trainer(root, *callbacks, **{"max_epochs": 2, **options})
    trainer.fit(module, loader(), loader(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize(
    ("error", "fails_at", "window", "step"),
    [(RuntimeError, 1, 1, 5), (KeyboardInterrupt, 1, 1, 5), (RuntimeError, 3, 2, 3)],
)
def test_a_run_goes_on_from_where_it_broke(tmp_path, capsys, error, fails_at, window, step):
    """Batches of a window that is unfinished are seen again."""

    class Breaking(Tiny):
        def training_step(self, batch, batch_idx):
            if self.current_epoch == 1 and batch_idx == fails_at:
                raise error("broken")
            return super().training_step(batch, batch_idx)

    with pytest.raises(error):
        fit(
            tmp_path,
            Breaking(),
            OnExceptionCheckpoint(tmp_path / "c"),
            accumulate_grad_batches=window,
        )
    path = tmp_path / "c/on_exception.ckpt"
    assert (
        f"{error.__name__}: the state after step {step} is saved in {path}"
        in capsys.readouterr().out
    )
    resumed, whole = Tiny(), Tiny()
    fit(tmp_path, resumed, ckpt_path=path, accumulate_grad_batches=window)
    fit(tmp_path / "whole", whole, accumulate_grad_batches=window)
    assert torch.equal(resumed.layer.weight, whole.layer.weight)


def test_a_failure_in_validation_saves_the_weights_and_not_their_average(tmp_path):
    class Failing(Tiny):
        def validation_step(self, batch, batch_idx):
            raise RuntimeError("broken")

    module = Failing()
    with pytest.raises(RuntimeError):
        fit(tmp_path, module, OnExceptionCheckpoint(tmp_path, "mine"), EMA(0.5))
    plain = Tiny()
    fit(tmp_path / "plain", plain, max_epochs=1)
    saved = load_checkpoint(tmp_path / "mine.ckpt")
    assert torch.equal(saved["model"]["layer.weight"], plain.layer.weight)


def test_an_exception_in_evaluation_saves_nothing(tmp_path):
    def fail(*_):
        raise RuntimeError

    trainer = make_trainer(
        tmp_path, OnExceptionCheckpoint(tmp_path), LambdaCallback(on_validation_start=fail)
    )
    with pytest.raises(RuntimeError):
        trainer.validate(Tiny(), loader())
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_cannot_be_saved_does_not_hide_the_exception(tmp_path):
    def fail(*_):
        raise RuntimeError("broken")

    (tmp_path / "file").touch()
    with (
        pytest.warns(UserWarning, match=r"can't be saved to .* after RuntimeError"),
        pytest.raises(RuntimeError, match="bro"),
    ):
        fit(
            tmp_path,
            Tiny(),
            At("on_train_epoch_end", fail),
            OnExceptionCheckpoint(tmp_path / "file"),
        )
