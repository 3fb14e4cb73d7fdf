"""Programs from the guides that users of other trainers know, with `core` in place of the package
that they name.

The devices are processes of a CPU; what needs a package that isn't installed says which.
"""

import os
import sys
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Accelerator, ClusterEnvironment, Fabric, Precision, Session, Strategy
from core.accelerators import CPUAccelerator
from core.checkpoint import TorchCheckpointIO
from core.contract import ConfigurationError
from core.strategies import (
    STRATEGY_REGISTRY,
    DDPStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
)
from core_testing import programs
from support.printed import lines_of

# several nodes ------------------------------------------------------------------------------------


@pytest.fixture
def second_node(monkeypatch):
    """The variables of a script that is started by hand on the second of two nodes."""
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "NODE_RANK": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second_node")
def test_ddp_with_custom_settings():
    ddp_strategy = DDPStrategy(
        process_group_backend="gloo",
        timeout=timedelta(minutes=30),
        find_unused_parameters=False,
        gradient_as_bucket_view=True,
    )
    fabric = Fabric(strategy=ddp_strategy, accelerator="cpu", devices=4, num_nodes=2)
    assert fabric.strategy.process_group_backend == "gloo"
    assert (fabric.world_size, fabric.node_rank) == (8, 1)


# backends that are installed: the same programs, which go on to train -----------------------------

TRAINS = """
import functools
import logging
import sys

import torch
from core import Fabric
from torch import nn

logging.disable(logging.WARNING)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(16, 8)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
        self.head = nn.Linear(8, 1)

    def forward(self, inputs):
        return self.head(self.body(self.embedding(inputs)))


def train(fabric):
    fabric.launch()
    model = Net()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.003))
    losses = []
    for step in range(4):
        inputs = torch.randint(16, (4, 3), generator=torch.Generator().manual_seed(fabric.global_rank))
        loss = (model(inputs).float() - 1).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0], losses
    fabric.print(f"{type(fabric.strategy).__name__}: {fabric.world_size} processes")
    units = [type(part).__name__ for part in model.modules() if type(part).__name__.startswith("FSDP")]
    fabric.teardown()
    # Autocast on a CPU wants normalizations in float32, so each is a unit of its own.
    return [name for name in units if "Norm" not in name]
"""


def run_program(folder, text):
    """The lines that a script prints, in order."""
    program = folder / "program.py"
    program.write_text(text)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = programs.run([sys.executable, program], env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return sorted(lines_of(done.stdout))


@pytest.mark.slow
def test_the_programs_of_fsdp_train(tmp_path):
    pytest.importorskip("core_fsdp", reason="needs core-fsdp")
    program = f"""{TRAINS}
UNITS = ["FSDPNet", "FSDPTransformerEncoderLayer", "FSDPTransformerEncoderLayer"]

# FSDP with CPU offloading
fabric = Fabric(strategy="fsdp", accelerator="cpu", devices=2, precision="bf16-mixed")
assert train(fabric) == UNITS

# FSDP with custom configuration
from core.strategies import FSDPStrategy
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

fsdp_strategy = FSDPStrategy(
    cpu_offload=True,
    mixed_precision=MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
    ),
    auto_wrap_policy=transformer_auto_wrap_policy,
    activation_checkpointing=True,
)
fabric = Fabric(strategy=fsdp_strategy, accelerator="cpu", devices=2)
assert train(fabric) == UNITS

# every option as the guide's signature has it
fsdp_strategy = FSDPStrategy(
    cpu_offload=None, mixed_precision=None, auto_wrap_policy=None, activation_checkpointing=None,
    activation_checkpointing_policy=None, sharding_strategy=None, state_dict_type=None, use_orig_params=False,
    limit_all_gathers=True, sync_module_states=False, forward_prefetch=False, parallel_devices=None,
    cluster_environment=None, checkpoint_io=None, precision_plugin=None, process_group_backend=None, timeout=None,
)
train(Fabric(strategy=fsdp_strategy, accelerator="cpu", devices=2))

# a wrapping policy
policy = {{nn.TransformerEncoderLayer, nn.TransformerDecoderLayer}}
strategy = FSDPStrategy(auto_wrap_policy=policy)
train(Fabric(strategy=strategy, accelerator="cpu", devices=2))
"""
    assert run_program(tmp_path, program) == ["FSDPStrategy: 2 processes"] * 4


@pytest.mark.parametrize(
    "program",
    [
        """
# DeepSpeed ZeRO Stage 2
train(Fabric(strategy="deepspeed", accelerator="cpu", devices=2, precision="bf16-mixed"))
""",
        """
# DeepSpeed with custom configuration
from core.strategies import DeepSpeedStrategy

deepspeed_config = {
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"}
    },
    "train_micro_batch_size_per_gpu": 1
}
train(Fabric(strategy=DeepSpeedStrategy(config=deepspeed_config), accelerator="cpu", devices=2))
""",
    ],
    ids=["stage 2", "stage 3"],
)
def test_the_programs_of_deepspeed_train(tmp_path, program):
    pytest.importorskip("deepspeed", reason="needs DeepSpeed; `tox run -e deepspeed`")
    assert "DeepSpeedStrategy: 2 processes" in run_program(tmp_path, TRAINS + program)


# strategies of one's own --------------------------------------------------------------------------


def test_a_registered_strategy_trains_through_fabric(request):
    class CustomStrategy(Strategy):
        def setup_module(self, module):
            # Custom module setup
            return module

        def reduce(self, tensor, *args, **kwargs):
            # Custom reduction logic
            return tensor

    # Register custom strategy
    STRATEGY_REGISTRY.register("custom", CustomStrategy)
    request.addfinalizer(lambda: STRATEGY_REGISTRY.remove("custom"))

    def make_loader():
        return DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)

    def make_model():
        model = nn.Linear(4, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    fabric = Fabric(strategy="custom")
    assert type(fabric.strategy) is CustomStrategy
    model, optimizer = make_model()
    model, optimizer = fabric.setup(model, optimizer)
    before = model.weight.detach().clone()
    for (inputs,) in fabric.setup_dataloaders(make_loader()):
        loss = model(inputs).square().mean()
        fabric.backward(loss)
        optimizer.step()
        # Mark step boundary for XLA
        if hasattr(fabric.strategy, "mark_step"):
            fabric.strategy.mark_step()
    assert not torch.equal(model.weight, before)


@pytest.mark.slow
def test_a_ddp_strategy_with_a_wrapper_accelerator_and_precision_of_ones_own(tmp_path):
    """Both ranks step to the mean of all four numbers: gradients went through the wrapper."""
    custom_ddp = """
import torch
from core import Module, Precision, Trainer
from core.accelerators import CPUAccelerator
from core.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class MyDistributedDataParallel(DistributedDataParallel):
    def __init__(self, module, device_ids):
        super().__init__(module)


class MyAccelerator(CPUAccelerator):
    num_setups = 0

    def setup(self):
        MyAccelerator.num_setups += 1


class MyPrecision(Precision):
    connected = []

    def connect(self, *args):
        MyPrecision.connected += args


class CustomDDPStrategy(DDPStrategy):
    def configure_ddp(self):
        self.model = MyDistributedDataParallel(
            self.model,
            device_ids=...,
        )

    def setup(self, trainer):
        # you can access the accelerator and plugins directly
        self.accelerator.setup()
        self.precision_plugin.connect(...)


class Mean(Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        assert type(self.trainer.strategy.model) is MyDistributedDataParallel
        return (batch - self.weight).square().mean() / 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


# custom strategy, with new accelerator and plugins
accelerator = MyAccelerator()
precision_plugin = MyPrecision()
strategy = CustomDDPStrategy(accelerator=accelerator, precision_plugin=precision_plugin)
trainer = Trainer(
    strategy=strategy, devices=2, max_epochs=1, enable_progress_bar=False, enable_checkpointing=False
)
module = Mean()
trainer.fit(module, DataLoader([1.0, 2.0, 3.0, 6.0], batch_size=2))
assert trainer.strategy is strategy and strategy.accelerator is accelerator
assert MyAccelerator.num_setups >= 2 and ... in MyPrecision.connected
print(f"rank {trainer.global_rank}: {module.weight.item()}")
"""
    results = run_program(tmp_path, custom_ddp)
    assert [line for line in results if line.startswith("rank")] == ["rank 0: 3.0", "rank 1: 3.0"]


# the classes, with the options that the guides give them ------------------------------------------


@pytest.mark.parametrize("base", [Strategy, SingleDeviceStrategy, ParallelStrategy])
def test_a_strategy_may_extend_each_base_class(base):
    own = type("OwnStrategy", (base,), {})
    assert isinstance(Fabric(strategy=own(), accelerator="cpu").strategy, base)


def test_ddp_strategy_takes_parts():
    devices, checkpoint_io, precision = [torch.device("cpu")] * 2, TorchCheckpointIO(), Precision()
    strategy = DDPStrategy(
        parallel_devices=devices,
        checkpoint_io=checkpoint_io,
        precision_plugin=precision,
        ddp_comm_state=None,
        ddp_comm_hook=None,
        ddp_comm_wrapper=None,
        model_averaging_period=None,
        process_group_backend=None,
        timeout=None,
    )
    fabric = Fabric(strategy=strategy)
    assert strategy.parallel_devices == devices
    assert (strategy.checkpoint_io, strategy.precision_plugin) == (checkpoint_io, precision)
    assert isinstance(strategy.accelerator, Accelerator)
    assert isinstance(strategy.cluster_environment, ClusterEnvironment)
    assert fabric.world_size == 2


@pytest.mark.parametrize("order", [1, -1])
def test_parts_may_be_given_by_position(order):
    """One guide has `accelerator` first, the other `parallel_devices`."""
    parts = [CPUAccelerator(), [torch.device("cpu")] * 2, None, TorchCheckpointIO(), Precision()]
    strategy = DDPStrategy(*parts[::order], find_unused_parameters=False)
    assert (
        Session(strategy).given_parts().items()
        >= {
            "accelerator": parts[0],
            "parallel_devices": parts[1],
            "checkpoint_io": parts[3],
            "precision_plugin": parts[4],
        }.items()
    )
    assert Fabric(strategy=strategy).world_size == 2


def test_what_is_no_part_is_refused_by_position():
    with pytest.raises(
        ConfigurationError, match=r"^DDPStrategy\(\.\.\.\): expected by position an Accelerator, a "
    ):
        DDPStrategy(...)
    with pytest.raises(
        ConfigurationError, match="two values for accelerator, one of them by position"
    ):
        DDPStrategy(CPUAccelerator(), accelerator=CPUAccelerator())
