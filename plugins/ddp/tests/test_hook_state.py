"""The state of communication hooks is in checkpoints, and as new in the next run."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from core import ConfigurationError
from core_ddp import DDPStrategy, hook_state
from core_testing import Backend
from core_testing.ranks import end_kept_ranks

RANKS = Backend("single_device", num_processes=2, kept_for=__name__)


@pytest.fixture(scope="module", autouse=True)
def _ranks_end():
    yield
    end_kept_ranks()


def power_sgd(**options):
    state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    return DDPStrategy(ddp_comm_state=state, ddp_comm_hook=powerSGD_hook, **options)


def test_a_run_goes_on_with_what_its_hook_kept(tmp_path):
    """Bit for bit; and the same instance begins its next run anew."""
    stop_at = 4

    def train(fabric, path, begin=0):
        torch.manual_seed(0)
        module = nn.Linear(6, 6, bias=False).double()
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        draw = torch.Generator().manual_seed(fabric.global_rank)
        batches = [torch.randn(4, 6, generator=draw, dtype=torch.float64) for _ in range(7)]
        state = {"model": model, "optimizer": optimizer}
        if begin:
            fabric.load(path, state)
        for step, batch in enumerate(batches[begin:], start=begin):
            if step == stop_at and not begin:
                fabric.save(path, state)
            fabric.backward(model(batch).sin().sum())
            optimizer.step()
            optimizer.zero_grad()
        strategy = fabric.strategy
        fabric.teardown()
        return module.weight.detach(), strategy

    def whole_and_resumed(rank, path):
        whole, strategy = train(rank.fabric(power_sgd()), path)
        rest, _ = train(rank.fabric(power_sgd()), path, stop_at)
        again, _ = train(rank.fabric(strategy), path)
        return whole, rest, again

    for whole, rest, again in RANKS.run(whole_and_resumed, tmp_path / "half"):
        assert torch.equal(rest, whole)
        assert torch.equal(again, whole)


def test_what_was_saved_goes_to_the_device_of_the_gradients():
    """A checkpoint is read to the CPU."""
    layer = nn.Linear(2, 2, bias=False)
    inner = PowerSGDState(None, start_powerSGD_iter=2)
    state = hook_state.HookState(inner)
    state.load_state_dict(
        {**state.state_dict(), "buckets": {"0": ["weight"]}, "error_dict": {"0": torch.ones(4)}}
    )
    bucket = SimpleNamespace(
        index=lambda: 0,
        parameters=lambda: [layer.weight],
        buffer=lambda: torch.empty(4, device="meta"),
    )
    state.by_bucket(lambda state, bucket: None, layer)(inner, bucket)
    assert inner.error_dict[0].device.type == "meta"


def test_a_backward_of_several_buckets_is_one_for_which_power_sgd_waits(monkeypatch):
    """As with NCCL; over gloo there is one bucket. torch cuts buckets anew after the first
    gradients, and again so.
    """
    whole = []
    monkeypatch.setattr(
        hook_state.default_hooks,
        "allreduce_hook",
        lambda group, bucket: whole.append(bucket.index()),
    )
    weights = [nn.Parameter(torch.ones(2, 2)) for _ in range(3)]
    module = nn.ParameterList(weights)
    state = hook_state.HookState(
        PowerSGDState(None, start_powerSGD_iter=2, use_error_feedback=False)
    )
    saved = state.state_dict()
    state.load_state_dict({**saved, "buckets": {"0": ["0", "1", "2"]}})
    compress = state.by_bucket(lambda state, bucket: "compressed", module)
    buckets = [
        SimpleNamespace(
            index=lambda n=n: n, parameters=lambda n=n: [weights[n]], is_last=lambda n=n: n == 2
        )
        for n in range(3)
    ]
    for _ in range(2):
        assert [compress(SimpleNamespace(process_group=None), each) for each in buckets] == [
            None
        ] * 3
    assert whole == [0, 1, 2] * 2
    answers = [compress(SimpleNamespace(process_group=None), each) for each in buckets[:2]]
    message = (
        "^DDP's buckets aren't those of the checkpoint: PowerSGD begins without what it had "
        "left out.$"
    )
    with pytest.warns(UserWarning, match=message):
        answers.append(
            compress(SimpleNamespace(process_group=None, iter=0, start_powerSGD_iter=2), buckets[2])
        )
    assert answers == [None, None, "compressed"]


def test_power_sgd_over_gloo_takes_one_bucket():
    """With several, torch's hook waits for gloo in all of gloo's own threads, for ever."""

    def backward_in_small_buckets(rank):
        fabric, layers = (
            rank.fabric(power_sgd(bucket_cap_mb=1e-4)),
            [nn.Linear(6, 6, bias=False) for _ in range(3)],
        )
        module = nn.Sequential(*layers)
        model, _ = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        said = []
        for _ in range(3):
            try:
                fabric.backward(model(torch.ones(1, 6)).sum())
            except ConfigurationError as error:
                said.append(str(error))
        return said[0]

    assert (
        RANKS.run(backward_in_small_buckets)
        == [
            "PowerSGD over gloo would wait for ever: torch's hook does so where DDP has more than "
            "one bucket. Pass a bucket_cap_mb that holds all gradients, or use NCCL."
        ]
        * 2
    )
