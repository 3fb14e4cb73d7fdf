"""torch.compile over a Trainer and Fabric: by the user before, by an option, and of parts."""

import copy
import re
import tempfile

import pytest
import torch
from spawned_net import SpawnedNet
from torch import nn
from torch._dynamo.testing import CompileCounter

from core import Callback, Capability, ConfigurationError, Fabric, Module, UnsupportedError
from core.checkpoint import TorchCheckpointIO
from core.session.equal_masks import HAS_EQUAL_MASKS
from core.strategies import SingleDeviceStrategy
from core_testing import Backend
from support.small_nets import At, batches, fit, quiet_trainer


class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = self(batch).pow(2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


NAMES = [f"net.{index}.{name}" for index in (0, 2) for name in ("weight", "bias")]

# torch looks for a gradient where there is none, and hides the warning, which pytest makes an error
# before.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def save_at_end(path):
    return At("on_train_end", lambda module: module.trainer.save_checkpoint(path))


def train(module, *, ckpt_path=None, **options):
    trainer = quiet_trainer(**{"max_epochs": 2, "plugins": TorchCheckpointIO(), **options})
    trainer.fit(module, batches(3), batches(2), ckpt_path=ckpt_path)
    return trainer


def assert_same_weights(module, other):
    for parameter, wanted in zip(own(module).parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted)


def own(module):
    return getattr(module, "_orig_mod", module)


@pytest.fixture(scope="module")
def expected():
    module = Net()
    return module, {name: float(value) for name, value in train(module).callback_metrics.items()}


@pytest.fixture
def counter():
    return CompileCounter()


def by_option(counter):
    return Net(), {"compile": {"backend": counter}}


def by_user(counter):
    return torch.compile(Net(), backend=counter), {}


def in_place(counter):
    module = Net()
    module.compile(backend=counter)
    return module, {}


def a_part(counter):
    module = Net()
    module.net = torch.compile(module.net, backend=counter)
    return module, {}


def a_method(counter):
    module = Net()
    module.forward = torch.compile(module.forward, backend=counter)
    return module, {}


@pytest.mark.parametrize("compiled", [by_option, by_user, in_place, a_part, a_method])
def test_a_compiled_module_trains_the_same(compiled, counter, expected, tmp_path):
    module, options = compiled(counter)
    trainer = train(module, callbacks=save_at_end(tmp_path / "last.ckpt"), **options)
    reference, metrics = expected
    assert counter.frame_count > 0
    assert {
        name: float(value) for name, value in trainer.callback_metrics.items()
    } == pytest.approx(metrics, rel=1e-5)
    assert_same_weights(module, reference)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert list(saved["model"]) == saved["optimizers"][0]["param_groups"][0]["params"] == NAMES


@pytest.mark.parametrize("compiled", [by_user, a_part])
def test_a_checkpoint_knows_nothing_of_it(compiled, expected, tmp_path):
    train(Net(), max_epochs=1, callbacks=save_at_end(tmp_path / "last.ckpt"))
    module, _ = compiled("eager")
    train(module, ckpt_path=tmp_path / "last.ckpt")
    assert_same_weights(module, expected[0])
    assert set(Net.load_from_checkpoint(tmp_path / "last.ckpt").state_dict()) == set(NAMES)


def test_a_step_is_compiled_around_what_it_logs(counter):
    train(Net(), compile={"backend": counter}, limit_val_batches=0)
    assert counter.frame_count == 1  # up to the loss; what follows the log has no operation
    assert counter.op_count >= 5


@pytest.mark.parametrize("options", [{}, {"region": ["net"]}], ids=["whole", "parts"])
def test_in_two_processes(options):
    module, reference = Net(), Net()
    for batch_size, each, others in (
        (
            2,
            module,
            {"strategy": "ddp_fork", "devices": 2, "compile": {"backend": "eager", **options}},
        ),
        (4, reference, {}),
    ):
        loader = torch.utils.data.DataLoader(torch.cat(batches(4)), batch_size)
        fit(each, loader, loader, **others)
    assert_same_weights(module, reference)


@pytest.mark.slow
def test_spawned_workers_compile_too():
    module = torch.compile(SpawnedNet(), backend="eager")
    trainer = fit(module, batches(2), strategy="ddp_spawn", devices=1)
    assert trainer.global_step == 2


# units --------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Deep(Net):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 4), nn.Sequential(*(Block() for _ in range(12))), nn.Linear(4, 1)
        )


def compiled_units(module):
    return [
        name
        for name, part in module.named_modules()
        if part._compiled_call_impl or "forward" in vars(part)
    ]


class Compiled(Callback):
    """The units that are compiled while training runs, in the module and in a copy of it."""

    def on_train_start(self, trainer, module):
        self.names, self.in_a_copy = compiled_units(module), compiled_units(copy.deepcopy(module))


@pytest.mark.parametrize("validates", [0, 1])
def test_a_block_that_repeats_is_compiled_once(validates, counter, tmp_path):
    compiled, module, reference = Compiled(), Deep(), Deep()
    callbacks = [compiled, save_at_end(tmp_path / "last.ckpt")]
    options = {"region": "units", "backend": counter, "fullgraph": True}
    train(module, limit_val_batches=validates, compile=options, callbacks=callbacks)
    assert compiled.names == [f"net.1.{index}" for index in range(12)]
    assert compiled.in_a_copy == []  # it would compute with the weights of the other
    assert counter.frame_count == 1 + validates  # without gradients it is another program
    assert compiled_units(module) == []  # as before
    assert list(torch.load(tmp_path / "last.ckpt", weights_only=True)["model"]) == list(
        reference.state_dict()
    )
    train(reference, limit_val_batches=validates)
    assert_same_weights(module, reference)


def test_parts_that_are_listed(counter):
    compiled = Compiled()
    train(
        Deep(),
        compile={"region": ["net.1.3", "net.2"], "backend": counter},
        callbacks=compiled,
        limit_val_batches=0,
    )
    assert compiled.names == ["net.1.3", "net.2"]
    assert counter.frame_count == 2


@pytest.mark.parametrize("region", ["blocks", 3, [3]])
def test_an_unknown_region(region):
    message = (
        f"compile has region={region!r}: expected 'units', or a list of layer classes and of "
        "names of classes or"
    )
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        quiet_trainer(compile={"region": region})


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (
            "units",
            "compile={'region': 'units'} means the repeated blocks of the model, and Net has no "
            "ModuleList",
        ),
        (
            ["net.4"],
            "'net.4' is listed as a unit, and no part of Net is or has that name. Did you mean "
            "'net.2'",
        ),
    ],
)
def test_a_model_without_such_parts(region, message):
    with pytest.raises(ConfigurationError, match=message):
        train(Net(), compile={"region": region})


def test_the_whole_and_its_parts():
    with pytest.raises(
        ConfigurationError,
        match=r"torch\.compile\(Deep\) compiles the whole module, and compile={'reg",
    ):
        train(torch.compile(Deep(), backend="eager"), compile={"region": "units"})


def test_a_strategy_that_sets_up_everything_together():
    class Joint(SingleDeviceStrategy):
        capabilities = SingleDeviceStrategy().capabilities | Capability.JOINT_SETUP

        def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
            return (
                self.setup_module(module),
                [self.setup_optimizer(one) for one in optimizers],
                scheduler,
            )

    compiled = Compiled()
    train(
        Deep(),
        strategy=Joint(),
        compile={"region": "units", "backend": "eager"},
        callbacks=compiled,
    )
    assert len(compiled.names) == 12


def test_a_strategy_that_compiles_steps_itself():
    class Compiling(SingleDeviceStrategy):
        capabilities = Capability.COMPILED_STEP

    with pytest.raises(
        UnsupportedError,
        match="Compiling runs forward, backward and update as one compiled program, of",
    ):
        Fabric(accelerator="cpu", strategy=Compiling(), compile={"region": "units"})


# dropout on GPUs ----------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_EQUAL_MASKS, reason="a torch without the fault")
def test_masks_that_compiled_dropout_draws_on_a_gpu_are_warned_of():
    class OnGPU(SingleDeviceStrategy):
        """Says where it would be, once its module is there."""

        @property
        def root_device(self):
            return torch.device("cuda" if self.session.handles else "cpu")

    def set_up(*layers, compiles=True):
        fabric = Fabric(
            accelerator="cpu", strategy=OnGPU(), compile=compiles and {"backend": "eager"}
        )
        model = nn.Sequential(nn.Linear(2, 2), *layers)
        fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))

    set_up(nn.Dropout(0.0))
    set_up(nn.Dropout(0.1), compiles=False)
    with pytest.warns(
        UserWarning,
        match=r"one mask for neighbouring channels, .*issues/198333.*align_random_eager",
    ):
        set_up(nn.Dropout(0.1))
    from torch._inductor import config  # few need it

    with config.patch(align_random_eager=True):
        set_up(nn.Dropout(0.1))


# Fabric -------------------------------------------------------------------------------------------


def test_fabric(counter):
    model = Fabric(accelerator="cpu", compile={"backend": counter}).setup(Net())
    assert torch.equal(model(batches(1)[0]), Net()(batches(1)[0]))
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.skipif(
    " " in f"{torch.__file__}{tempfile.gettempdir()}",
    reason="torch calls its C++ compiler without quoting paths",
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_with_torchs_own_backend(expected):
    """In a process of its own: the compiler leaves threads, and a process that has some can't be
    forked.
    """

    def compile_and_train(rank):
        module = Net()
        trainer = train(module, compile=True)
        return trainer.global_step, module.state_dict()

    [(global_step, weights)] = Backend(lambda: "single_device", timeout_s=250).run(
        compile_and_train
    )
    assert global_step == 6
    torch.testing.assert_close(weights, expected[0].state_dict())
