"""Activations that are computed again in backward, or wait for it in the memory of the CPU."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy

from core import Callback, Capability, ConfigurationError, Fabric, Module, UnsupportedError
from core.activations import saved_activations
from core.strategies import SingleDeviceStrategy
from support.small_nets import batches, fit, quiet_trainer


class Block(nn.Module):
    """Has random numbers, buffers that its forward changes, and arguments by name."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.register_buffer("mask", torch.ones(16))
        self.register_buffer("level", torch.ones(()))

    def forward(self, x, *, scale=1.0):
        hidden = torch.dropout(torch.tanh(self.norm(self.up(x))), 0.5, self.training)
        out = x + scale * self.down(hidden * self.mask * self.level.clone())
        if self.training:
            self.level.mul_(1.1)  # what is computed again must see the old one
        return out


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(4, 1)
        self.saved = []

    def training_step(self, batch, batch_idx):
        def note(tensor):
            self.saved[-1] += tensor.numel() * tensor.element_size()
            return tensor

        self.saved.append(0)
        with saved_tensors_hooks(note, lambda tensor: tensor):
            x = batch.clone().requires_grad_()
            for block in self.blocks:
                x = block(x, scale=0.5)
            return self.head(x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Losses(Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.values.append(outputs.item())


def train(**options):
    torch.manual_seed(3)
    module, losses = Net(), Losses()
    quiet_trainer(**{"max_epochs": 2, "callbacks": losses, **options}).fit(module, batches(3, 4))
    return module, losses.values


def keeps_products(ctx, op, *args, **kwargs):
    products = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


WAYS = {
    "units": "units",
    "classes": [Block],
    "names": {"blocks.1", "Linear"},
    "policy": keeps_products,
    "operations": [torch.ops.aten.addmm.default],
    "both": {"units": [Block], "policy": keeps_products},
}


@pytest.mark.numbers
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_weights_are_bit_equal(way):
    expected, losses = train()
    module, got = train(activation_checkpointing=WAYS[way])
    assert got == losses
    assert list(module.state_dict()) == list(expected.state_dict())
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name]), name
    if way != "names":
        # bytes that autograd keeps, seen by hooks around the step
        assert max(module.saved) < min(expected.saved) / 2


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_as_one_graph():
    class Plain(Net):
        def __init__(self):
            super().__init__()
            layers = (
                nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(2)
            )
            self.blocks = nn.ModuleList(layers)

        def training_step(self, batch, batch_idx):
            return self.head(self.blocks[1](self.blocks[0](batch))).square().mean()

    def net(**options):
        torch._dynamo.reset()
        module = Plain()
        fit(module, batches(2, 4), compile={"backend": "aot_eager", "fullgraph": True}, **options)
        return module.state_dict()

    expected = net()
    for name, value in net(activation_checkpointing="units").items():
        assert torch.equal(value, expected[name]), name
    torch._dynamo.reset()


def test_nothing_stays_on_the_module():
    class Looks(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            assert all("forward" in vars(block) for block in module.blocks)
            copied = copy.deepcopy(module)  # as averages of weights are
            assert copied.blocks[0].forward.__self__ is copied.blocks[0]
            assert list(copied.state_dict()) == list(Net().state_dict())

    module, _ = train(activation_checkpointing="units", callbacks=Looks())
    assert not any("forward" in vars(block) for block in module.blocks)


@pytest.mark.numbers
@pytest.mark.parametrize("copied", [False, True])
def test_statistics_count_each_batch_once(copied):
    class Counted(nn.Module):
        """Statistics of a layer that is frozen now and then, those of a norm that counts no
        batches, and a buffer that some forwards change.
        """

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("num_calls", torch.zeros(()))
            self.register_buffer("num_odd", torch.zeros(()))
            self.own = nn.Module()
            self.own.register_buffer("mean", torch.zeros(4))
            self.own.register_buffer("variance", torch.ones(4))

        def forward(self, x):
            self.num_calls += 1
            if self.num_calls % 2 == 0:
                self.num_odd += 1
            x = nn.functional.batch_norm(x, self.own.mean, self.own.variance, training=True)
            return self.norm(x).tanh()

    def counted(**options):
        block = Counted()
        if options:
            saved_activations.save_activations([block], **options)
        block = copy.deepcopy(block) if copied else block
        torch.manual_seed(0)
        for step in range(5):
            block.norm.train(step in (2, 4))
            block(torch.randn(8, 4, requires_grad=True)).sum().backward()
        return {name: value.tolist() for name, value in block.state_dict().items()}

    expected = counted()
    assert (expected["num_calls"], expected["num_odd"], expected["norm.num_batches_tracked"]) == (
        5,
        2,
        2,
    )
    assert counted(checkpoints=True) == expected
    assert counted(checkpoints=True, policy=keeps_products) == expected


def test_a_second_backward_through_a_graph_computes_again_once_more():
    def gradients(block):
        torch.manual_seed(0)
        out = block(torch.randn(8, 4, requires_grad=True)).sum()
        out.backward(retain_graph=True)
        out.backward()
        return [
            value.tolist()
            for value in (*(part.grad for part in block.parameters()), *block.buffers())
        ]

    torch.manual_seed(0)
    block = Block()
    plain, _ = copy.deepcopy(block), saved_activations.save_activations([block])
    assert gradients(block) == gradients(plain)


def test_a_forward_of_the_users_own_is_kept():
    block = Block()
    block.forward = own = lambda x: x * 2
    undo = saved_activations.save_activations([block])
    assert torch.equal(block(torch.ones(2, requires_grad=True)), torch.full((2,), 2.0))
    undo()
    assert vars(block)["forward"] is own


@pytest.mark.numbers
def test_offloaded_activations_leave_and_parameters_stay(monkeypatch):
    moved = []

    class Moves(saved_activations.save_on_cpu):
        def __init__(self, **options):
            super().__init__(**options)
            pack = self.pack_hook
            self.pack_hook = lambda tensor: (moved.append(tensor), pack(tensor))[1]

    monkeypatch.setattr(saved_activations, "save_on_cpu", Moves)
    block = Block()
    undo = saved_activations.save_activations([block], checkpoints=False, offload_from="xpu")
    block(torch.rand(8, 4, requires_grad=True)).sum().backward()
    undo()
    assert moved
    held = {one.untyped_storage().data_ptr() for one in block.parameters()}
    assert not held & {one.untyped_storage().data_ptr() for one in moved}


def test_offload_changes_no_number():
    _, losses = train()
    assert train(activation_offload=True)[1] == losses
    assert train(activation_offload=True, activation_checkpointing="units")[1] == losses


def test_fabric_has_it_too():
    fabric = Fabric(accelerator="cpu", activation_checkpointing="units")
    module = Net()
    model, _ = fabric.setup(module, module.configure_optimizers())
    assert "forward" in vars(module.blocks[0])
    fabric.backward(model.training_step(batches(1, 4)[0], 0))
    fabric.teardown()
    assert "forward" not in vars(module.blocks[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"activation_checkpointing": True},
            r"activation_checkpointing=True: expected 'units', layer classes",
        ),
        (
            {"activation_checkpointing": "blocks"},
            r"activation_checkpointing='blocks': expected 'units'",
        ),
        ({"activation_checkpointing": []}, r"expected 'units'"),
        ({"activation_checkpointing": {"unit": [Block]}}, r"expected 'units'"),
        ({"activation_checkpointing": {"policy": 3}}, r"has the policy 3: expected"),
        ({"activation_offload": 1}, r"activation_offload=1: expected True or False"),
    ],
)
def test_arguments_of_no_known_form(options, message):
    with pytest.raises(ConfigurationError, match=message):
        quiet_trainer(max_epochs=1, **options)


def test_models_without_what_is_asked_for():
    with pytest.raises(
        ConfigurationError, match=r"'Conv2d' is listed as a unit, and no part of Net is or has that"
    ):
        train(activation_checkpointing=[nn.Conv2d])
    with pytest.raises(
        ConfigurationError, match=r"'blocks' is a ModuleList, which is never called itself"
    ):
        train(activation_checkpointing=["blocks"])
    fabric = Fabric(accelerator="cpu", activation_offload=True)
    with pytest.raises(
        ConfigurationError,
        match=r"activation_offload=True means the repeated blocks .* Linear has no",
    ):
        fabric.setup(nn.Linear(2, 2))


def test_strategies_that_decide_themselves():
    class Compiled(SingleDeviceStrategy):
        @property
        def capabilities(self):
            return super().capabilities | Capability.COMPILED_STEP

    class Told(SingleDeviceStrategy):
        own_activation_option = "checkpoint_layers"

    with pytest.raises(
        UnsupportedError, match="Compiled runs forward and backward as one compiled program"
    ):
        Fabric(accelerator="cpu", strategy=Compiled(), activation_checkpointing="units")
    with pytest.raises(
        ConfigurationError,
        match=r"and checkpoint_layers of Told both say what .* Leave one of them",
    ):
        quiet_trainer(strategy=Told(), activation_offload=True)
