"""One peer: what is refused before work, and how it differs from a loop on torch alone, which is
nowhere.
"""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import ConfigurationError, Fabric, Module, Trainer
from core.strategies import HivemindStrategy
from core_hivemind import AveragingOptions, PeersError, processes
from core_testing.ranks import QUIET
from core_testing.waiting import slowness

NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWJS7RaLC3UHEidbihhyx1GcSRABFn6wdjeoiockBQAQwk"
FORK = multiprocessing.get_context("fork")
make = partial(HivemindStrategy, run_id="alone", target_batch_size=1)


class Net(Module):
    def __init__(self, schedule=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.schedule = nn.Linear(4, 1).double(), schedule

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - 1).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        if self.schedule is None:
            return optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": self.schedule},
        }


def loader(num_samples=40, batch_size=16):
    data = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(1)).double()
    return DataLoader(TensorDataset(data), batch_size=batch_size)


def changes_by_hand(fabric, samples, before_step=lambda index: None):
    """For each batch of 16, if a loop of the user's own has changed the weights."""
    net = Net()
    model, optimizer = fabric.setup(net, net.configure_optimizers())
    weights, changed = net.layer.weight.clone(), []
    for index, (inputs,) in enumerate(fabric.setup_dataloaders(loader(samples))):
        before_step(index)
        fabric.backward(model.training_step([inputs], 0))
        optimizer.step()
        optimizer.zero_grad()
        changed.append(not torch.equal(weights, net.layer.weight))
        weights = net.layer.weight.clone()
    return changed


def fit(strategy, net=None, **options):
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=1, **{"max_epochs": 1, **options}, **QUIET
    )
    trainer.fit(net or Net(), loader())
    return trainer


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"target_batch_size": None},
            r"target_batch_size: the samples that all peers together see",
        ),
        ({"run_id": "a.b"}, r"run_id='a.b': a name without dots"),
        ({"min_peers": 0}, r"min_peers=0: at least 1"),
        (
            {"averaging": AveragingOptions(matchmaking_time=40.0)},
            r"matchmaking_time=40.0 and averaging_timeout=30.0",
        ),
        (
            {"averaging": AveragingOptions(compression="zip")},
            r"compression='zip': one of 'none', 'float16'",
        ),
        (
            {"client_mode": True},
            r"client_mode=True takes no connections, .* Pass initial_peers, or peer_endpoint",
        ),
        ({"dht_options": {"client_mode": True}}, r"client_mode=True takes no connections"),
        ({"endpoint": "nowhere"}, r"endpoint='nowhere': expected 'host:port'"),
        ({"peer_endpoint": "a:1", "initial_peers": NOBODY}, r"Pass one of the two"),
    ],
)
def test_what_cannot_work_is_refused_before_work(options, text):
    with pytest.raises(ConfigurationError, match=text):
        Trainer(strategy=make(**options), accelerator="cpu")


@pytest.mark.parametrize("timeout", [5, "5", timedelta(0)])
def test_a_timeout_is_a_duration(timeout):
    with pytest.raises(
        ConfigurationError, match=r"peers_timeout=.*: expected a positive datetime.timedelta"
    ):
        make(peers_timeout=timeout)


def test_a_schedule_that_peers_do_not_share_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"StepLR is stepped by epochs, .*'interval': 'step'"
    ):
        fit(make(), Net("epoch"))


def test_a_peer_that_cannot_be_reached_is_an_error():
    with pytest.raises(
        PeersError, match=r"This peer can't take part: .*Its initial_peers: /ip4/127.0.0.1/tcp/9"
    ):
        fit(make(initial_peers=NOBODY))


def test_gradients_are_averaged_over_samples():
    """Batches of 16, 16 and 8 samples make a step of 40, and equal one of 40 on one device; frozen
    weights stay.
    """
    alone, whole = Net(), Net()
    alone.layer.bias.requires_grad_(False)
    whole.layer.bias.requires_grad_(False)
    assert fit(make(target_batch_size=40), alone).global_step == 1
    optimizer = whole.configure_optimizers()
    (batch,) = loader(batch_size=40)
    whole.training_step(batch, 0).backward()
    optimizer.step()
    torch.testing.assert_close(alone.layer.weight, whole.layer.weight, rtol=1e-12, atol=0)
    assert torch.equal(alone.layer.bias, whole.layer.bias)


def test_a_peer_that_is_alone_counts():
    """However long it pauses: hivemind takes a step by an estimate of the samples that were seen
    meanwhile.
    """
    often = AveragingOptions(
        tracker_options={"min_refresh_period": 0.1, "default_refresh_period": 0.1}
    )
    fabric = Fabric(strategy=make(target_batch_size=32, averaging=often), accelerator="cpu")
    changed = changes_by_hand(fabric, 12 * 16, lambda index: time.sleep(2 if index == 8 else 0.05))
    fabric.teardown()
    assert changed == [False, True] * 6


def test_gradients_stay_in_their_buffers():
    nets = Net(), Net()
    for net, reuses in zip(nets, (False, True), strict=True):
        averaging = AveragingOptions(reuse_grad_buffers=reuses)
        fit(make(target_batch_size=32, averaging=averaging), net)
    assert torch.equal(nets[0].layer.weight, nets[1].layer.weight)


def test_a_loop_by_hand_takes_the_loaders_batch_size():
    """And Ctrl-C, which hivemind would have the process ignore from here on."""
    handler = signal.getsignal(signal.SIGINT)
    fabric = Fabric(strategy=make(target_batch_size=32), accelerator="cpu")
    assert changes_by_hand(fabric, 32) == [False, True]
    assert signal.getsignal(signal.SIGINT) is handler
    fabric.teardown()


def test_a_program_whose_processes_are_spawned_is_a_peer_too():
    """Where multiprocessing spawns, hivemind's averagers fail: they can't be pickled."""
    multiprocessing.set_start_method("spawn", force=True)
    try:
        assert fit(make()).global_step == 3
    finally:
        multiprocessing.set_start_method(None, force=True)


def test_a_run_begins_after_a_child_was_killed_in_an_answer():
    class KillsAnAnswer(Net):
        """A child ends in the middle of an answer, as one that is killed may, and keeps the lock of
        answers.
        """

        def on_train_end(self):
            from hivemind.utils.mpfuture import MPFuture

            child = FORK.Process(target=MPFuture._update_lock.acquire)
            child.start()
            child.join()

    fit(make(), KillsAnAnswer())
    assert fit(make()).global_step == 3


def test_a_process_that_leaves_without_a_word_ends():
    child = FORK.Process(
        target=lambda: changes_by_hand(Fabric(strategy=make(), accelerator="cpu"), 40)
    )
    child.start()
    child.join(60 * slowness())
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert child.exitcode == 0


def test_a_script_that_tears_nothing_down_ends():
    """Its Fabric lives as long as the interpreter, which waits for hivemind's threads."""
    program = """if True:
        import torch
        from core import Fabric
        from core.strategies import HivemindStrategy
        fabric = Fabric(strategy=HivemindStrategy(target_batch_size=2, batch_size=2), accelerator="cpu")
        layer = torch.nn.Linear(2, 1)
        model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
        for _ in range(3):
            fabric.backward(model(torch.ones(2, 2)).sum())
            optimizer.step()
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_waits_are_freed_once_the_child_that_ended_is_known_to_be_dead(monkeypatch):
    """Its pipe closes before that."""
    here, there = multiprocessing.Pipe()
    seen, done = [], threading.Event()

    class Child:
        sentinel, is_known = here.fileno(), False

        def join(self, timeout):
            self.is_known = True

    def free():
        seen.append(child.is_known)
        done.set()

    child = Child()
    monkeypatch.setattr(processes, "_free_waits", free)
    watch = processes.ChildExits([child])
    assert not seen
    there.close()
    assert done.wait(60 * slowness())
    watch.end()
    watch.join()
    assert seen[0]
