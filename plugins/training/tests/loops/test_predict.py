import pytest
from recording import Recorder, flat, loader, make_trainer, numbers
from torch import nn

from core import Callback, Module, ModuleError
from core_testing import in_one_process


def test_a_list_of_batches(tmp_path):
    predictions = make_trainer(tmp_path).predict(Recorder(tmp_path), loader(5))
    assert numbers(predictions) == [[0, 10], [20, 30], [40]]
    assert all(not prediction.requires_grad for prediction in predictions)
    assert (
        make_trainer(tmp_path).predict(Recorder(tmp_path), loader(), return_predictions=False)
        is None
    )


def test_several_loaders_give_a_list_of_lists(tmp_path):
    predictions = make_trainer(tmp_path).predict(
        Recorder(tmp_path), {"a": loader(3), "b": loader(2, start=5)}
    )
    assert numbers(predictions) == [[[0, 10], [20]], [[50, 60]]]


@pytest.mark.parametrize("num_samples", [8, 7, 1])
def test_the_first_of_two_ranks_has_the_order_of_the_data_set_and_the_other_its_own(
    tmp_path, num_samples
):
    def predict():
        trainer = make_trainer(tmp_path, strategy="ddp", devices=2)
        return numbers(trainer.predict(Recorder(tmp_path), [loader(num_samples), loader(3)]))

    first, second = in_one_process(predict)
    assert list(map(flat, first)) == [
        [10 * number for number in range(num)] for num in (num_samples, 3)
    ]
    assert flat(second) == [10 * number for number in (2, 3, 6, 7) if number < num_samples] + [20]


def test_the_default_calls_the_module(tmp_path):
    class Doubling(Module):
        def forward(self, x):
            assert not self.training
            return x * 2

    module = Doubling()
    assert numbers(make_trainer(tmp_path).predict(module, loader(2))) == [[0, 2]]
    assert module.training


def test_hooks_of_a_batch_get_its_outputs(tmp_path):
    calls = []

    class Listener(Callback):
        def on_predict_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx):
            calls.append(f"batch {batch_idx} of {dataloader_idx}")

        def on_predict_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx):
            calls.append(outputs.tolist())

    make_trainer(tmp_path, callbacks=Listener()).predict(Recorder(tmp_path), loader(4))
    assert calls == ["batch 0 of 0", [0, 10], "batch 1 of 0", [20, 30]]


def test_a_module_that_cannot_predict(tmp_path):
    with pytest.raises(
        ModuleError, match=r"Linear has no predict_step\(\), which predict needs. Define it"
    ):
        make_trainer(tmp_path).predict(nn.Linear(1, 1), loader())
