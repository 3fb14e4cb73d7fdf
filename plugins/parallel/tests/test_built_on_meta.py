"""Models that are built on meta begin with the weights of one device, and no rank ever has all; or
they don't train.
"""

import logging
import warnings
from functools import partial

import pytest
import torch
from language import ALONE, Saves, Seen, on
from pipelines import loader
from torch import nn

from core import CoreError, Fabric, Module, Trainer
from core_parallel import ExpertList, MeshParallelStrategy
from core_parallel.stages import first_values
from core_testing.training import assert_equal_tensors

_linear = partial(nn.Linear, dtype=torch.float64)


class Scaled(nn.Module):
    """A module that begins with values of its own, and has a buffer."""

    def __init__(self):
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.empty(4)), nn.Buffer(torch.empty(4))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.uniform_(self.scale)
        nn.init.normal_(self.offset)


class Initialized(nn.Module):
    """A model in the manner of transformers: it draws once more, for all that is in it."""

    def __init__(self, inside=True):
        super().__init__()
        self.inside = Initialized(inside=False) if inside else Scaled()
        self.embed, self.head = nn.Embedding(3, 4), nn.Linear(4, 3)
        for child in (*self.inside.modules(), self.embed, self.head):
            if not getattr(child, "drawn", False):
                self._init_weights(child)
                child.drawn = True

    def _init_weights(self, part):
        if isinstance(part, nn.Embedding | nn.Linear):
            nn.init.normal_(part.weight, std=0.5)


class TiedLater(Initialized):
    """A head that gets the embedding's weight after both were drawn."""

    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


class Tied(nn.Sequential):
    """Two layers that share a weight."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))
        self[1].weight = self[0].weight


@pytest.mark.parametrize(
    "make",
    [
        *(
            Scaled,
            Initialized,
            TiedLater,
            Tied,
            lambda: nn.TransformerEncoderLayer(4, 2, 8),
            lambda: nn.BatchNorm1d(3),
        ),
        lambda: ExpertList(nn.Linear(4, 3) for _ in range(2)),
    ],
)
def test_each_part_draws_what_it_draws_on_one_device(make):
    def tensors(module):
        return {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers()),
        }

    strategy = Fabric(accelerator="cpu").strategy
    torch.manual_seed(3)
    expected, after = tensors(make()), torch.rand(2)
    torch.manual_seed(3)
    with torch.device("meta"):
        module = make()
    before = tensors(module)
    own = list(before.values())[::2]
    assert first_values.is_needed(module, strategy)
    first_values.fill(module, strategy, lambda tensor: any(tensor is one for one in own))
    assert torch.equal(torch.rand(2), after)
    for name, tensor in tensors(module).items():
        assert tensor is before[name], "it is the same object"
        assert tensor.is_meta != any(tensor is one for one in own)
        assert tensor.is_meta or torch.equal(tensor, expected[name]), name


def test_a_part_without_first_values_is_named():
    with torch.device("meta"):
        module = nn.ModuleDict(
            {"inside": nn.ParameterDict({"weight": nn.Parameter(torch.empty(2))})}
        )
    with pytest.warns(
        UserWarning,
        match=r"1 submodules were built on the meta device and have no .*: inside\. They",
    ):
        first_values.fill(module, Fabric(accelerator="cpu").strategy, lambda _: True)
    assert module.inside["weight"].isnan().all()


class Scale(nn.Module):
    """A layer without values of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, dtype=torch.float64))
        self.factor = nn.Buffer(torch.empty(1, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight * self.factor


class Net(nn.Module):
    """A model that gives first values to what is in it."""

    tensor_parallel_plan = {"up": "colwise", "down": "rowwise"}

    def __init__(self):
        super().__init__()
        self.scale, self.up, self.down = Scale(), _linear(6, 8), _linear(8, 2)
        self.apply(self._init_weights)

    def _init_weights(self, part):
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.5)  # and its bias stays as it was
        if isinstance(part, Scale):
            nn.init.uniform_(part.weight)
            nn.init.constant_(part.factor, 0.5)

    def pipeline(self):
        return [self.scale, self.up, torch.tanh, self.down]

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.scale(x))))


class OnMeta(Module):
    """A module whose model is built on meta where there are several ranks."""

    def __init__(self):
        super().__init__()
        self.net = None
        # with a value, of each rank's own
        self.bias = nn.Parameter(torch.rand(2, dtype=torch.float64))

    def configure_model(self):
        if self.net is None:
            torch.manual_seed(4)
            with torch.device("meta" if self.trainer.world_size > 1 else "cpu"):
                self.net = Net()

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) + self.bias - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@pytest.mark.parametrize(
    "mesh",
    [
        *({axis: 2} for axis in ("shard", "tensor", "pipeline", "data")),
        {"context": 2, "context_dim": 0},
    ],
    ids=str,
)
def test_a_model_gives_its_own_first_values(mesh, tmp_path):
    def go_on(rank, path):
        """The weights after an epoch, and after another one from its checkpoint, by a module of its
        own.
        """
        found = []
        for number in (1, 2):
            seen, batches = Seen(), loader(16, 4 // rank.backend.data_parallel_size)
            torch.manual_seed(rank.number)
            trainer = rank.trainer(max_epochs=number, callbacks=[seen, Saves(path)])
            trainer.fit(OnMeta(), batches, ckpt_path=path if number == 2 else None)
            found.append(seen.weights)
        return found

    ((begun, ended), *_), ((one_begun, one_ended),) = (
        backend.run(go_on, tmp_path / str(number))
        for number, backend in enumerate((on(**mesh), ALONE))
    )
    assert_equal_tensors(begun, one_begun, 1e-12)
    assert_equal_tensors(ended, one_ended, 1e-12)


def test_first_values_are_drawn_before_they_are_converted():
    """Generators give other numbers in float64."""

    def draw(rank):
        fabric = rank.fabric(precision="64-true")
        torch.manual_seed(4)
        net = nn.Linear(6, 8, device="meta", dtype=torch.float32)
        fabric.setup(net)
        drawn = net.weight.detach().clone()
        fabric.teardown()
        return drawn

    (drawn, _) = on(data=2).run(draw)
    torch.manual_seed(4)
    assert torch.equal(drawn, nn.Linear(6, 8, dtype=torch.float32).weight.double())


class Tied(OnMeta):
    """A module with a weight in two places."""

    def configure_model(self):
        is_new = self.net is None
        super().configure_model()
        if is_new:
            self.again = nn.Linear(6, 8, bias=False, device=self.net.up.weight.device)
            self.again.weight = self.net.up.weight


def test_the_users_module_has_the_trained_weights_afterwards():
    torch.manual_seed(5)
    one, both = Tied(), Tied()
    both.load_state_dict(one.state_dict())
    bias = both.bias
    options = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
    }
    Trainer(devices=1, **options).fit(one, loader(16, 4))
    on_two = MeshParallelStrategy(data=2, start_method="fork")
    Trainer(strategy=on_two, devices=2, **options).fit(both, loader(16, 2))
    assert_equal_tensors(both.state_dict(), one.state_dict(), 1e-12)
    assert both.bias is bias
    assert both.again.weight is both.net.up.weight


def test_a_rank_has_its_stage_alone_of_a_model_on_meta(caplog):
    def _layers():
        return nn.Sequential(
            _linear(6, 8), nn.Tanh(), nn.LayerNorm(8), _linear(8, 8), nn.Tanh(), _linear(8, 2)
        )

    def build(rank):
        """Whether a model of a Fabric is on meta, and the parameters that a rank has of it then."""
        fabric = rank.fabric()
        with fabric.init_module(empty_init=True):
            module = _layers()
        was_empty = all(one.is_meta for one in module.parameters())
        fabric.setup(module)
        fabric.setup(_layers())
        with torch.device("meta" if rank.number else "cpu"):
            other = _layers()
        with pytest.raises(
            CoreError, match="built on the meta device on some ranks, and with values on others"
        ):
            fabric.setup(other)
        fabric.teardown()
        return was_empty, [name for name, one in module.named_parameters() if not one.is_meta]

    log = "core_parallel.staged_modules"
    caplog.set_level(logging.INFO, log)
    first, last = on(in_process=True, pipeline=2).run(build)
    assert first == (True, ["0.weight", "0.bias", "2.weight", "2.bias"])
    assert last == (True, ["3.weight", "3.bias", "5.weight", "5.bias"])
    [told] = [record.getMessage() for record in caplog.records if record.name == log]
    assert told.startswith(
        "Sequential was built whole on every rank, and rank 0 has let go of 0 MiB that other stages"
    )


class Unknown(Net):
    """One whose scale gets no values; its method is for itself."""

    def __init__(self):
        super().__init__()
        self._init_weights()

    def apply(self, fn):
        return self if fn == self._init_weights else super().apply(fn)

    def _init_weights(self):  # others have a method of this name too
        nn.init.normal_(self.down.weight)


@pytest.mark.parametrize("axis", ["shard", "tensor"])
def test_nothing_trains_without_values(axis):
    def attempts(rank):
        """The warning at set-up, and the errors of steps before there are values, and after."""
        fabric, said = rank.fabric(), []
        with torch.device("meta"):
            net = Unknown()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        said += [
            str(one.message) for one in caught if "built on the meta device" in str(one.message)
        ]
        for state in (None, Net().state_dict()):
            if state is not None:
                fabric.strategy.load_module_state_dict(net, state)
            fabric.backward(model(torch.ones(4, 6, dtype=torch.float64)).sum())
            try:
                optimizer.step()
            except CoreError as error:
                said.append(str(error))
        fabric.teardown()
        return said

    for said in on(**{axis: 2}).run(attempts):
        warned, refused = said  # the last attempt says nothing
        assert (
            "have no reset_parameters() that could give them values: scale. They hold NaN until"
            in warned
        )
        assert refused.startswith(
            "'scale.weight' of Unknown was built on the meta device, and nothing has given it"
        )
