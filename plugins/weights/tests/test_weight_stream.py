import math
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from core import Callback, ConfigurationError, Fabric, ModuleError
from core.fabric import WholeTensors
from core.strategies import ModelParallelStrategy
from core_testing.ranks import Backend
from support.tiny import Tiny, loader, make_trainer


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


def test_streams_parameters_and_buffers(net, fabric):
    model = fabric.setup(net)
    stream = fabric.weights(model, dtype=torch.bfloat16)
    state = net.state_dict()
    assert [name for name, _ in stream] == list(state)
    for name, tensor in stream:
        expected = state[name].bfloat16() if state[name].is_floating_point() else state[name]
        assert torch.equal(tensor, expected)
        assert not tensor.requires_grad
    described = {each.name: (each.dtype, each.shape) for each in stream.metadata()}
    assert described == {name: (tensor.dtype, tensor.shape) for name, tensor in stream}
    assert stream.held_names() is None


def test_what_is_kept_in_float32_is_streamed_so(net, fabric):
    net.keep_in_float32 = ("2",)
    stream = fabric.weights(fabric.setup(net), dtype=torch.bfloat16)
    in_float32 = {name for name, tensor in stream if tensor.dtype == torch.float32}
    assert in_float32 == {each.name for each in stream.metadata() if each.dtype == torch.float32}
    assert in_float32 == {"2.weight", "2.bias"}


def test_names_choose_and_rename(net, fabric):
    model = fabric.setup(net)
    assert [name for name, _ in fabric.weights(model, names=["2.bias", "0.weight"])] == [
        "2.bias",
        "0.weight",
    ]
    renamed = fabric.weights(model, names={"0.bias": "model.bias"})
    assert [each.name for each in renamed.metadata()] == ["model.bias"]
    assert torch.equal(dict(renamed)["model.bias"], net[0].bias)
    with pytest.raises(
        ModuleError, match=r"has '1.scale', and Sequential has no tensor of this name.*0\.weight"
    ):
        fabric.weights(model, names=["0.weight", "1.scale"])


def test_training_must_not_go_on_within_an_iteration(net, fabric):
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=1.0))
    iteration, other = iter(fabric.weights(model)), iter(fabric.weights(model))
    next(iteration)
    next(other)  # two at a time are no step
    next(iteration)
    optimizer.step()
    with pytest.raises(
        ConfigurationError, match=r"Training has gone on .* '1\.weight' would be of another step"
    ):
        next(iteration)


def test_needs_a_module_that_was_set_up(net, fabric, tmp_path):
    with pytest.raises(ConfigurationError, match="was not set up"):
        fabric.weights(net)
    module, trainer = Tiny(), make_trainer(tmp_path, max_steps=1, limit_val_batches=0)
    trainer.fit(module, loader())
    with pytest.raises(ConfigurationError, match="was not set up"):
        trainer.weights()


@pytest.mark.parametrize(
    ("hook", "versions", "num_errors"),
    [("on_train_batch_end", [1, 2], 0), ("on_before_optimizer_step", [], 2)],
)
def test_a_trainer_streams_between_two_steps_only(tmp_path, hook, versions, num_errors):
    class Streams(Callback):
        """In the hook that it is told."""

        def __init__(self, hook):
            self.versions, self.errors = [], []
            setattr(self, hook, self.stream)

        def stream(self, trainer, module, *_):
            try:
                stream = trainer.weights()
            except ConfigurationError as error:
                self.errors.append(str(error))
            else:
                assert [name for name, _ in stream] == ["layer.weight", "layer.bias"]
                self.versions.append(stream.version)

    streams = Streams(hook)
    make_trainer(tmp_path, streams, max_steps=2, limit_val_batches=0).fit(Tiny(), loader())
    assert (streams.versions, len(streams.errors)) == (versions, num_errors)
    assert all(
        "within a training step" in error and "on_train_batch_end" in error
        for error in streams.errors
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_get_the_same_bits(dtype):
    odd = [-0.0, math.nan, math.inf, 1.5]

    def stream_cut(rank, dtype):
        """On two ranks of tensor parallelism: what is streamed, what is held, and the most bytes
        reduced at once.
        """
        net = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.Linear(6, 5), nn.Linear(900, 1001, bias=False)
        ).to(dtype)
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor(odd).to(dtype).expand(6, 4))
            net[1].weight.copy_(torch.arange(30.0).view(5, 6))
        expected = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        fabric = rank.fabric()
        fabric.launch()
        parallelize_module(
            net,
            fabric.strategy.device_mesh["tensor_parallel"],
            {"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel()},
        )
        stream = fabric.weights(fabric.setup(net))
        for name, tensor in stream:
            assert tensor.view(torch.uint8).equal(expected[name].view(torch.uint8)), name
        iteration = iter(stream)
        yielded = weakref.ref(next(iteration)[1])
        assert yielded() is None, "the stream keeps what its caller has dropped"
        for _ in iteration:
            pass
        sharded = WholeTensors(
            fabric.strategy, fabric.strategy.get_module_state_dict(net, layout="sharded")
        )
        return [name for name, _ in stream], sharded.held_names(), fabric.strategy.largest

    class Counting(ModelParallelStrategy):
        """Keeps the bytes of the largest tensor that it has reduced."""

        largest = 0

        def reduce(self, tensor, group=None, reduce_op="mean"):
            self.largest = max(self.largest, tensor.nbytes)
            return super().reduce(tensor, group, reduce_op)

    backend = Backend(Counting, num_processes=2, in_process=True)
    for names, held, largest in backend.run(stream_cut, dtype):
        assert names == ["0.weight", "1.weight", "1.bias", "2.weight"]
        assert held == names
        assert largest <= 1 << 20, "copies of whole tensors"
