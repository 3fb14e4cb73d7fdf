import pytest
import torch
from torch import nn

from core import Callback, Module, ModuleError
from trainer.recording import (
    Recorder,
    flat,
    loader,
    make_parallel_trainer,
    make_trainer,
    numbers,
    seen,
)


class Saving(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_end(self, trainer, module):
        trainer.save_checkpoint(self.path)


def test_a_list_of_batches(tmp_path):
    predictions = make_trainer(tmp_path).predict(Recorder(tmp_path), loader(5))
    assert numbers(predictions) == [[0, 10], [20, 30], [40]]
    assert all(not prediction.requires_grad for prediction in predictions)


def test_several_loaders_give_a_list_of_lists(tmp_path):
    predictions = make_trainer(tmp_path).predict(Recorder(tmp_path), {"a": loader(3), "b": loader(2, start=5)})
    assert numbers(predictions) == [[[0, 10], [20]], [[50, 60]]]


@pytest.mark.parametrize("num_samples", [8, 7, 1])
def test_two_processes_give_the_order_of_the_data_set(tmp_path, num_samples):
    predictions = make_parallel_trainer(tmp_path).predict(Recorder(tmp_path), loader(num_samples))
    assert flat(numbers(predictions)) == [10 * number for number in range(num_samples)]


def test_each_rank_but_the_first_has_its_own(tmp_path):
    class Keeping(Recorder):
        def on_predict_end(self):
            self.note("ends", self.trainer.num_predict_batches)

    predictions = make_parallel_trainer(tmp_path).predict(Keeping(tmp_path), [loader(8), loader(3)])
    assert numbers(predictions) == [[[0, 10], [20, 30], [40, 50], [60, 70]], [[0, 10], [20]]]
    assert [seen(tmp_path, "ends", rank) for rank in (0, 1)] == [[[2, 1]], [[2, 1]]]


@pytest.mark.parametrize("make", [make_trainer, make_parallel_trainer], ids=["1", "2"])
def test_nothing_is_kept_if_nobody_wants_it(tmp_path, make):
    assert make(tmp_path).predict(Recorder(tmp_path), loader(), return_predictions=False) is None
    assert len(make(tmp_path).predict(Recorder(tmp_path), loader(), return_predictions=True)) in (3, 4)


def test_the_default_calls_the_module(tmp_path):
    class Doubling(Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x):
            assert not self.training
            return x * 2

    module = Doubling()
    assert numbers(make_trainer(tmp_path).predict(module, loader(2))) == [[0, 2]]
    assert module.training


@pytest.mark.parametrize("num_arguments", [1, 2, 3])
def test_arguments_at_the_end_may_be_left_out(tmp_path, num_arguments):
    class Net(Recorder):
        predict_step = [
            None,
            lambda self, batch: (batch[0],),
            lambda self, batch, batch_idx: (batch[0], batch_idx),
            lambda self, batch, batch_idx, dataloader_idx=0: (batch[0], batch_idx, dataloader_idx),
        ][num_arguments]

    _, (_, last) = make_trainer(tmp_path).predict(Net(tmp_path), [loader(4), loader(4)])
    assert last == (2, 1, 1)[:num_arguments]


def test_hooks_come_in_order(tmp_path):
    calls = []

    class Listener(Callback):
        def on_predict_start(self, trainer, module):
            calls.append("start")

        def on_predict_epoch_start(self, trainer, module):
            calls.append("epoch start")

        def on_predict_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx):
            calls.append(f"batch {batch_idx} of {dataloader_idx}")

        def on_predict_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx):
            calls.append(outputs.tolist())

        def on_predict_epoch_end(self, trainer, module):
            calls.append("epoch end")

        def on_predict_end(self, trainer, module):
            calls.append("end")

    make_trainer(tmp_path, callbacks=Listener()).predict(Recorder(tmp_path), loader(4))
    assert calls == ["start", "epoch start", "batch 0 of 0", [0, 10], "batch 1 of 0", [20, 30], "epoch end", "end"]


def test_weights_of_a_checkpoint(tmp_path):
    class Weight(Recorder):
        def predict_step(self, batch):
            return self.layer.weight.clone()

    trained, path = Weight(tmp_path), tmp_path / "a.ckpt"
    make_trainer(tmp_path, callbacks=Saving(path)).fit(trained, loader())
    (weight, *_) = make_trainer(tmp_path).predict(Weight(tmp_path), loader(), ckpt_path=path)
    assert torch.equal(weight, trained.layer.weight)


def test_precision_holds(tmp_path):
    class Product(Recorder):
        def predict_step(self, batch):
            return self.layer(batch.float()[:, None])

    (prediction,) = make_trainer(tmp_path, precision="bf16-mixed").predict(Product(tmp_path), loader(2))
    assert prediction.dtype is torch.bfloat16


def test_logging_is_refused(tmp_path):
    class Logging(Recorder):
        def predict_step(self, batch):
            self.log("x", 1.0)

    with pytest.raises(ModuleError, match=r"self.log\('x'\) was called while predicting, which has no metrics"):
        make_trainer(tmp_path).predict(Logging(tmp_path), loader())


def test_a_module_that_cannot_predict(tmp_path):
    with pytest.raises(ModuleError, match=r"Linear has no predict_step\(\), which predict needs. Define it"):
        make_trainer(tmp_path).predict(nn.Linear(1, 1), loader())
