"""Refusals of `fsdp_fairscale`, and ddp's weights over a test double for CUDA's streams: see
`streams_double.py`.
"""

from datetime import timedelta

import pytest
import streams_double
import torch
from torch import nn

from core import ConfigurationError, Fabric, ModuleError, Trainer, WorkerError
from core_fairscale import FullyShardedFairScaleStrategy, refusals
from core_testing import Backend
from core_testing.ranks import end_kept_ranks
from core_testing.waiting import slowness

ONE, UNITS = "fsdp_on_a_double", "fsdp_in_units_on_a_double"


@pytest.fixture(scope="module")
def ranks():
    streams_double.register()
    yield Backend(lambda: UNITS, num_processes=2, kept_for=__name__)
    end_kept_ranks()


@pytest.mark.parametrize("host", [Fabric, Trainer])
def test_is_refused_without_cuda_and_says_what_to_use(host):
    with pytest.raises(ConfigurationError, match=r"this run is on 'cpu'.*Use strategy='fsdp'"):
        host(strategy="fsdp_fairscale", accelerator="cpu", devices=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flatten_parameters": True}, "one flat parameter in the place"),
        ({"mixed_precision": True}, "doesn't take mixed_precision=...: precision='bf16-mixed'"),
        ({"move_params_to_cpu": True}, "strategy='fsdp' has cpu_offload=True"),
        ({"min_num_params": 0}, "expected a number from 1"),
        ({"start_method": "thread"}, "start_method='thread': expected one of 'subprocess'"),
    ],
)
def test_options_that_are_decided_elsewhere_say_where(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FullyShardedFairScaleStrategy(**options)


def test_formats_that_fairscale_cant_cut_are_refused():
    strategy = FullyShardedFairScaleStrategy()
    with pytest.raises(ConfigurationError, match="Use '32-true' or 'bf16-mixed'"):
        strategy.configure_precision("16-mixed")
    with pytest.raises(ConfigurationError, match="'weight' of Linear is float64"):
        refusals.refuse_cut_module(nn.Linear(2, 2).double(), in_units=False)


def test_models_and_optimizers_that_would_train_wrongly_are_refused():
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    refusals.refuse_cut_module(tied, in_units=False)
    with pytest.raises(ConfigurationError, match="under two names"):
        refusals.refuse_cut_module(tied, in_units=True)
    with pytest.raises(ConfigurationError, match="LBFGS looks at whole tensors"):
        refusals.refuse_whole_tensors(torch.optim.LBFGS(tied.parameters()))


@pytest.mark.parametrize(
    ("num_processes", "bias", "weight"),
    [
        (2, (1 + 3 + 5 + 7) / 2, [(1 + 9 + 25 + 49) / 2, (2 + 12 + 30 + 56) / 2]),
        (1, 1 + 3, [1 + 9, 2 + 12]),
    ],
)
def test_gradients_add_up_also_of_parameters_of_one_element(num_processes, bias, weight):
    """The bias has one element, and its part on rank 0 of 2 the shape of the whole; one rank has
    all whole.
    """

    def gradients_of_two_backwards(rank):
        torch.manual_seed(0)
        fabric, layer = rank.fabric(), nn.Linear(2, 1)
        model, _ = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=1.0))
        states = [fabric.strategy.get_module_state_dict(layer)]
        inputs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])[2 * rank.number :]
        for row in inputs[:2]:
            fabric.backward(model(row[None]).sum() * row[0])
        fabric.strategy.optimizer_step(fabric.strategy.optimizers[0])
        states.append(fabric.strategy.get_module_state_dict(layer))
        fabric.teardown()
        return {
            name: (states[0][name] - value).flatten().tolist() for name, value in states[1].items()
        }

    streams_double.register()
    ranks = Backend(lambda: "fsdp_on_a_double", num_processes=num_processes, timeout_s=100)
    found = ranks.run(gradients_of_two_backwards)[0]
    assert found["bias"] == pytest.approx([bias], rel=1e-6)
    assert found["weight"] == pytest.approx(weight, rel=1e-6)


def net():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(7, 9), nn.Tanh(), nn.Sequential(nn.Linear(9, 5), nn.LayerNorm(5)), nn.Linear(5, 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "evaluates"), [(UNITS, False), (ONE, True)])
def test_trains_as_ddp_on_a_double(ranks, strategy, evaluates):
    def stepped(rank, strategy, evaluates=False):
        """Whole weights after six steps; how many elements this rank has moments of; names in a
        checkpoint.
        """
        fabric, module = rank.fabric(strategy), net()
        optimizer = torch.optim.AdamW(
            [{"params": module[0].parameters(), "lr": 1e-3}, {"params": module[2:].parameters()}]
        )
        model, optimizer = fabric.setup(module, optimizer)
        for step in range(6):
            batch = torch.randn(8, 7, generator=torch.Generator().manual_seed(10 + step)).chunk(2)[
                rank.number
            ]
            optimizer.zero_grad()
            fabric.backward(model(batch).square().mean())
            # a forward between backward and step, after which FairScale keeps old weights gathered
            if evaluates:
                with torch.no_grad():
                    model(torch.ones(2, 7))
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
        num_kept = sum(
            entry["exp_avg"].numel() for entry in fabric.strategy.optimizers[0].state.values()
        )
        names = list(fabric.strategy.get_module_state_dict(fabric.strategy.model, layout="sharded"))
        return (
            fabric.strategy.get_module_state_dict(fabric.strategy.model, layout="full"),
            num_kept,
            names,
        )

    found = ranks.run(stepped, strategy, evaluates)
    torch.testing.assert_close(found[0][0], ranks.run(stepped, "ddp")[0][0], rtol=0, atol=2e-6)
    assert found[0][2][:2] == ["0.weight", "0.bias"]
    if strategy == UNITS:
        assert max(num_kept for _, num_kept, _ in found) < 0.6 * sum(
            one.numel() for one in net().parameters()
        )


@pytest.mark.slow
def test_what_a_loss_leaves_out_is_named_on_a_double(ranks):
    class Chosen(nn.Module):
        """Runs its first layer only, on one rank or on all."""

        def __init__(self, is_short):
            super().__init__()
            self.net, self.is_short = net(), is_short

        def forward(self, inputs):
            return (self.net[0] if self.is_short else self.net)(inputs)

    def leave_out(rank, *numbers):
        fabric, module = rank.fabric(), Chosen(rank.number in numbers)
        model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        fabric.backward(model(torch.ones(2, 7)).square().mean())

    def leave_out_all(rank):
        with pytest.raises(ModuleError) as raised:
            leave_out(rank, 0, 1)
        return str(raised.value)

    assert "no parameter of one unit of FairScale's" in ranks.run(leave_out_all)[0]
    # a rank waits a third of it for the other, which doesn't come
    limit = timedelta(seconds=6 * slowness())
    soon = Backend(lambda: streams_double.OnADouble(timeout=limit), num_processes=2)
    with pytest.raises(WorkerError, match=r"does not depend on 'net\.2\.0\.weight'"):
        soon.run(leave_out, 1)
