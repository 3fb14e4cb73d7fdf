"""core-dp where there is nothing to replicate modules on: what it refuses, and what it declares."""

import pytest
import torch

from core import Capability, ConfigurationError, Fabric, Session, UnsupportedError
from core.accelerators import CPUAccelerator
from core.strategies import DataParallelStrategy, DDP2Strategy


@pytest.mark.parametrize("alias", ["dp", "ddp2"])
def test_a_cpu_is_refused_and_ddp_named(alias):
    with pytest.raises(
        ConfigurationError, match=rf"strategy='{alias}' replicates .* 'cpu'\. Use strategy='ddp'"
    ):
        Fabric(strategy=alias, accelerator="cpu", devices=2)


def test_dp_on_several_nodes_names_ddp2():
    strategy = DataParallelStrategy(
        accelerator=CPUAccelerator(),
        parallel_devices=[torch.device("cuda", 0), torch.device("cuda", 1)],
    )
    strategy.num_nodes = 2
    with pytest.raises(ConfigurationError, match=r"num_nodes=2 .* strategy='ddp2'"):
        strategy.check()


def test_declared_capabilities():
    of_replicas = (
        Capability.SEVERAL_MODULES | Capability.SEVERAL_OPTIMIZERS | Capability.CLIP_BY_VALUE
    )
    of_replicas |= Capability.INFERENCE_MODE
    assert DataParallelStrategy().capabilities == of_replicas
    assert DDP2Strategy().capabilities == of_replicas | Capability.COLLECTIVES | Capability.NO_SYNC
    assert DDP2Strategy().num_processes_per_node == 1


@pytest.mark.parametrize(
    "compilers", [{"compiler": torch.compile}, {"unit_compiler": lambda module: lambda: None}]
)
def test_what_torch_compiles_is_refused(compilers):
    """A replica's compiled block would compute with the weights of the first device."""
    session = Session(DataParallelStrategy())
    vars(session).update(compilers)
    with pytest.raises(
        UnsupportedError,
        match=r"makes new replicas of the module in each step, which torch\.compile can't",
    ):
        session.add_module(torch.nn.Linear(2, 2))


class Drawing(CPUAccelerator):
    """Devices with a generator each, which the test turns on."""

    def __init__(self):
        self.states = {
            torch.device("cuda", index): torch.tensor([index], dtype=torch.uint8)
            for index in range(3)
        }

    def get_rng_state(self, device):
        return self.states[device].clone()

    def set_rng_state(self, state, device):
        self.states[device] = state


@pytest.mark.parametrize("kind", [DataParallelStrategy, DDP2Strategy])
def test_random_numbers_of_every_device_are_kept(kind):
    """The first device's are in every checkpoint."""
    accelerator = Drawing()
    strategy = kind(accelerator=accelerator, parallel_devices=["cuda:0", "cuda:1", "cuda:2"])
    saved = strategy.rank_state_dict()
    for state in accelerator.states.values():
        state += 10
    strategy.load_rank_state_dict(saved)
    assert [state.item() for state in accelerator.states.values()] == [10, 1, 2]


def test_one_device_keeps_nothing_more():
    assert (
        DataParallelStrategy(accelerator=Drawing(), parallel_devices=["cuda:0"]).rank_state_dict()
        is None
    )
