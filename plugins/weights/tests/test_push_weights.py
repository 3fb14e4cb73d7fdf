import pytest
import torch

from core import ConfigurationError
from core.callbacks import PushWeights
from support.tiny import Tiny, loader, make_trainer

# The tiny module can validate, and there is no need to.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
)


class Record:
    """A sink that keeps what is sent, and how it was closed."""

    def __init__(self):
        self.versions, self.weights, self.dtypes, self.closed, self.host = [], [], set(), [], None

    def send(self, host, stream):
        tensors = {name: tensor.clone() for name, tensor in stream}
        self.versions.append(stream.version)
        self.weights.append(tensors["layer.weight"])
        self.dtypes |= {tensor.dtype for tensor in tensors.values()}
        self.host = host

    def close(self, error=None):
        self.closed.append(error)


def fit(tmp_path, push, module=None, ckpt_path=None, **options):
    trainer = make_trainer(tmp_path, push, **({"max_epochs": 1} | options))
    trainer.fit(module or Tiny(), loader(), ckpt_path=ckpt_path)
    return trainer


def test_weights_are_sent_as_fit_begins_and_after_each_step(tmp_path):
    sink, module = Record(), Tiny()
    first = module.layer.weight.detach().clone()
    trainer = fit(tmp_path, PushWeights(sink), module)
    assert sink.versions == [0, 1, 2, 3, 4]
    assert torch.equal(sink.weights[0], first)
    assert torch.equal(sink.weights[-1], module.layer.weight)
    assert len({tuple(each.flatten().tolist()) for each in sink.weights}) == 5
    assert sink.host is trainer
    assert sink.closed == [None]


@pytest.mark.parametrize(
    ("options", "versions"),
    [({}, [0, 3, 6]), ({"accumulate_grad_batches": 2}, [0, 3]), ({"fast_dev_run": 3}, [0, 3])],
    ids=["steps", "accumulated", "fast_dev_run"],
)
def test_optimizer_steps_count(tmp_path, options, versions):
    sink = Record()
    fit(tmp_path, PushWeights(sink, every_n_steps=3), max_epochs=2, **options)
    assert sink.versions == versions


def test_a_run_that_goes_on_sends_what_it_goes_on_with(tmp_path):
    module = Tiny()
    trainer = fit(tmp_path, PushWeights(Record()), module)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    sink = Record()
    fit(tmp_path, PushWeights(sink, every_n_steps=2), max_epochs=2, ckpt_path=tmp_path / "one.ckpt")
    assert sink.versions == [4, 6, 8]
    assert torch.equal(sink.weights[0], module.layer.weight)


def test_a_dtype_or_a_stream_of_your_own(tmp_path):
    sink = Record()
    fit(tmp_path, PushWeights(sink, dtype=torch.bfloat16), max_steps=1)
    assert sink.dtypes == {torch.bfloat16}
    fit(
        tmp_path,
        PushWeights(sink, stream=lambda trainer, module: trainer.weights(names=["layer.weight"])),
    )
    assert sink.versions == [0, 1, 0, 1, 2, 3, 4]


def test_the_sink_learns_of_an_error(tmp_path):
    class Failing(Tiny):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 1:
                raise OSError("no more data")

    sink = Record()
    with pytest.raises(OSError, match="no more data"):
        fit(tmp_path, PushWeights(sink), Failing())
    assert str(sink.closed[0]) == "no more data"
    assert sink.closed[1:] == [None]


def test_other_stages_leave_the_sink_alone(tmp_path):
    sink = Record()
    make_trainer(tmp_path, PushWeights(sink)).test(Tiny(), loader(), verbose=False)
    assert (sink.versions, sink.closed) == ([], [])


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigurationError, match=r"every_n_steps=0\): expected 1 or more"):
        PushWeights(Record(), every_n_steps=0)
    with pytest.raises(ConfigurationError, match=r"the stream has a dtype of its own"):
        PushWeights(Record(), dtype=torch.half, stream=lambda trainer, module: trainer.weights())
