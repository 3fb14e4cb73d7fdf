"""core-fairscale beyond the kit: ddp's weights, whatever a loop calls; refusals; FairScale's
faults.
"""

import pytest
import torch
from torch import nn

from core import ConfigurationError, CoreError, Fabric
from core_fairscale import DDPShardedStrategy, refusals
from core_testing import Backend
from core_testing.ranks import end_kept_ranks

RANKS = Backend(lambda: "ddp_sharded", num_processes=2, kept_for=__name__)


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).double()


def batches(rank, number=8):
    generator = torch.Generator().manual_seed(10 + rank.number)
    return [torch.randn(6, 8, generator=generator).double() for _ in range(number)]


def state_of(module):
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def by_both(function, *args, of=("ddp_sharded", "ddp")):
    """What it returns on rank 0 under each strategy."""
    return [RANKS.run(function, strategy, *args)[0] for strategy in of]


def with_none(model, optimizer, step):
    optimizer.zero_grad()


def by_the_model(model, optimizer, step):
    model.zero_grad()


def by_hand(model, optimizer, step):
    for parameter in model.parameters():
        parameter.grad = None


def every_second(model, optimizer, step):
    if step % 2 == 0:
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("how", "tolerance"),
    [
        ((with_none,), 0),
        ((by_the_model,), 0),
        ((by_hand,), 0),
        ((with_none, True), 0),
        ((every_second,), 1e-9),  # but for the order of sums
    ],
    ids=["none", "by the model", "by hand", "in eval()", "every second"],
)
def test_weights_are_those_of_ddp_whatever_a_loop_calls(how, tolerance):
    def trained(rank, strategy, zero, evaluates=False):
        """Weights and buffers."""
        fabric, module = rank.fabric(strategy), net()
        model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step, batch in enumerate(batches(rank)):
            zero(model, optimizer, step)
            fabric.strategy.model.train(not evaluates or step < 4)  # the wrapper, and so all in it
            fabric.backward(model(batch).square().mean())
            optimizer.step()
            scheduler.step()
        return state_of(module)

    torch.testing.assert_close(*by_both(trained, *how), rtol=0, atol=tolerance)


def refusal(rank, function):
    with pytest.raises(CoreError) as raised:
        function(rank, "ddp_sharded")
    return str(raised.value)


def test_parameters_that_one_rank_uses_are_trained_as_by_ddp_or_named():
    unused = "_find_unused_parameters_true"

    class HalfUsed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.common, self.first = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, inputs, number):
            return self.common(inputs) + (self.first(inputs) if number == 0 else 0)

    def half_used(rank, strategy):
        fabric, module = rank.fabric(strategy), HalfUsed().double()
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        for batch in batches(rank, 3):
            optimizer.zero_grad()
            fabric.backward(model(batch, rank.number).square().mean())
            optimizer.step()
        return state_of(module)

    torch.testing.assert_close(
        *by_both(half_used, of=(f"ddp{unused}", f"ddp_sharded{unused}")), rtol=0, atol=0
    )
    message = RANKS.run(refusal, half_used)[0]
    assert "the loss depends on 'first.bias', 'first.weight', and on others it doesn't" in message
    assert f"ddp_sharded{unused}" in message


def test_modules_that_differ_are_refused():
    def unlike(rank, strategy):
        fabric, module = rank.fabric(strategy), nn.Linear(4, 1 + rank.number)
        fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))

    assert (
        "'weight', (1, 4) float32 on rank 0\n  'weight', (2, 4) float32 on rank 1"
        in RANKS.run(refusal, unlike)[0]
    )


def test_each_rank_keeps_a_part_of_the_optimizer():
    def owned(rank):
        """Number of elements that this rank's optimizer keeps moments of."""
        fabric, module = rank.fabric(), net()
        model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters()))
        fabric.backward(model(torch.ones(2, 8).double()).sum())
        optimizer.step()
        return sum(
            entry["exp_avg"].numel() for entry in fabric.strategy.optimizers[0].optim.state.values()
        )

    parts = RANKS.run(owned)
    assert sum(parts) == sum(one.numel() for one in net().parameters())
    assert min(parts) > 0


@pytest.mark.parametrize(
    ("module", "optimizer", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            torch.optim.SGD,
            "'0.bias' is float32",
        ),
        (lambda: nn.Linear(2, 2), torch.optim.LBFGS, "LBFGS needs all parameters in one place"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), torch.optim.SGD, "complex"),
    ],
)
def test_what_fairscale_would_train_wrongly_is_refused(module, optimizer, message):
    made = module()
    with pytest.raises(ConfigurationError, match=message):
        refusals.refuse(made, [optimizer(made.parameters(), lr=0.1)])


def test_options_that_train_wrongly_are_refused_before_work():
    with pytest.raises(ConfigurationError, match="buckets lose gradients"):
        DDPShardedStrategy(reduce_buffer_size=2**23)
    with pytest.raises(
        ConfigurationError, match="start_method='thread': expected one of 'subprocess'"
    ):
        DDPShardedStrategy(start_method="thread")
    with pytest.raises(ConfigurationError, match="keeps each gradient on one rank"):
        Fabric(strategy="ddp_sharded", precision="16-mixed", accelerator="cpu", devices=2)


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(ConfigurationError, match=r"pip install fairscale==0\.4\.13"):
        Fabric(strategy="ddp_sharded", accelerator="cpu", devices=2)
