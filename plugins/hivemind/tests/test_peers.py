"""Real peers on this machine: programs of their own, which find each other by their addresses."""

import os
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from peers import Peer, alive_in_session

from core_testing.waiting import wait_until

SLOW = {
    "averaging": {
        "averaging_timeout": 3600.0,
        "tracker_options": {"default_refresh_period": 0.1, "metadata_expiration": 3600.0},
    }
}
IN_THREES = {
    "averaging": {"averager_options": {"request_timeout": 1.0, "target_group_size": 3}},
}

pytestmark = pytest.mark.timeout(900)  # for programs on two cores that others may use too


def sockets():
    """Files of sockets that nobody listens to: what runs beside the test has some too."""
    alive = Path("/proc/net/unix").read_text()
    return {path for path in Path("/tmp").glob("hivemind-*") if str(path) not in alive}


@contextmanager
def peers_that_end(stop_at):
    """A function that starts peers, which are ended at the end."""
    with ExitStack() as ending:

        def start(**told):
            peer = Peer(stop_at=stop_at, **told)
            ending.callback(peer.end)
            return peer

        yield start


@pytest.fixture
def stop_at(tmp_path):
    return tmp_path / "stop"


@pytest.fixture
def start(stop_at):
    with peers_that_end(stop_at) as start_one:
        yield start_one


def start_two(start, options, **told):
    """Two peers of which the second knows the first."""
    first = start(seed=0, options=options, **told)
    return first, start(seed=1, options={**options, "initial_peers": first.addresses}, **told)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two peers begin; a third joins in the middle, and is killed; two more have misunderstood
    something.
    """
    stop_at, before = tmp_path_factory.mktemp("run") / "stop", sockets()
    with peers_that_end(stop_at) as start:
        first = start(seed=0, options={**IN_THREES, "min_peers": 2})
        known = {**IN_THREES, "initial_peers": first.addresses}
        second = start(seed=1, options={**known, "min_peers": 2})
        begun = await_equal_steps(first, second, count=2, after=0)
        third = start(seed=2, options=known, joint_steps=3)
        third.wait_for_code()
        killed_at = max(third.steps)
        for peer in (first, second):
            peer.wait_for("step", number=killed_at + 3)
        await_equal_steps(first, second, count=1, after=killed_at)
        other_run = start(seed=3, steps=2, options={**known, "run_id": "another"})
        other_model = start(seed=4, width=5, options=known)
        for peer in (other_run, other_model):
            peer.finish()
        stop_at.touch()
        ends = [peer.finish() for peer in (first, second)]
        yield SimpleNamespace(
            **{
                "first": first,
                "second": second,
                "third": third,
                "other_run": other_run,
                "other_model": other_model,
            },
            **{"ends": ends, "begun": begun, "killed_at": killed_at, "sockets_before": before},
        )


def await_equal_steps(*peers, count, after, timeout_s=300):
    """Wait for equal weights after so many later steps; the last step by then. A busy machine
    misses some rounds.
    """

    def have_met():
        peers[0].wait_for("step", number=max(peers[0].steps, default=0) + 1)
        return len([number for number in equal_steps(*peers) if number > after]) >= count

    wait_until(have_met, "equal weights", timeout_s=timeout_s)
    return max(peers[0].steps)


def equal_steps(*peers):
    """Steps that all of these peers have made, and after which their weights are equal, but for
    rounding in float64.
    """
    return [number for number, furthest in distances(*peers).items() if furthest < 1e-12]


def distances(*peers):
    """By step that all of these peers have made, how far their weights are apart."""
    common = set.intersection(*(set(peer.steps) for peer in peers))
    rows = {
        number: zip(*(peer.steps[number]["weights"] for peer in peers), strict=True)
        for number in sorted(common)
    }
    return {number: max(max(row) - min(row) for row in weights) for number, weights in rows.items()}


def test_weights_are_equal_after_each_joint_step(run):
    pair = equal_steps(run.first, run.second)
    assert len([number for number in pair if number <= run.begun]) >= 2
    apart = set(run.first.steps) & set(run.second.steps) - set(pair)
    told = [
        text
        for end in run.ends
        for text in end["warnings"]
        if "weights of peers may differ" in text
    ]
    assert not apart or told, f"weights differ after {sorted(apart)}, and nothing was said"


def test_a_peer_joins_in_the_middle_and_gets_the_state(run):
    number, joined = min(run.third.steps.items())
    assert number > run.begun
    assert joined["counted"] == number, "Adam's count is the run's"
    assert joined["rate"] == 0.05 * 0.5 ** (number // 2)
    assert equal_steps(run.first, run.second, run.third), distances(
        run.first, run.second, run.third
    )


def test_a_peer_is_killed_and_the_others_go_on(run):
    assert [number for number in equal_steps(run.first, run.second) if number > run.killed_at], (
        distances(run.first, run.second)
    )
    assert max(run.first.steps) >= run.killed_at + 3


def test_each_peer_has_a_stream_of_its_own(run):
    first, second = (end["samples"] for end in run.ends)
    assert first != second


def test_a_peer_that_met_nobody_says_so(run):
    (text,) = [text for text in run.other_run.events[-1]["warnings"] if "has trained alone" in text]
    assert "none of its 2 steps" in text


def test_a_peer_with_another_model_is_refused(run):
    assert "A peer trains another model under this run_id" in run.other_model.error


def test_nothing_is_left(run):
    peers = (run.first, run.second, run.third, run.other_run, run.other_model)
    wait_until(
        lambda: not any(alive_in_session(peer.group) for peer in peers),
        "end of all processes",
        timeout_s=20,
    )
    assert sockets() <= run.sockets_before


def test_peers_that_do_not_come_are_an_error(start):
    peer = start(steps=2, options={"min_peers": 2}, patience_s=2)
    assert peer.finish()["step"] == 0
    assert "min_peers=2, and 1 of run 'test' came within 2 s" in peer.error


def test_quick_steps_are_made_together(start):
    """Steps that are over sooner than peers hear of each other."""
    averaging = {"matchmaking_time": 3.0, "averaging_timeout": 30.0, "tracker_options": {}}
    options = {"min_peers": 2, "averaging": averaging}
    peers = start_two(start, options, steps=6, pause=0)
    assert [peer.finish()["step"] for peer in peers] == [6, 6]
    assert [peer.error for peer in peers] == [None, None]
    assert min(peer.steps[6]["joint"] for peer in peers) >= 4
    assert len(equal_steps(*peers)) >= 4, distances(*peers)


@pytest.mark.parametrize(("steps", "made"), [(-1, 3), (2, 2)], ids=["goes on", "ends before"])
def test_a_run_of_min_peers_that_nobody_shares_is_an_error(start, steps, made):
    """The other one is here at the beginning, and makes no step."""
    first = start(steps=steps, options={"min_peers": 2})
    start(dies=True, options={"min_peers": 2, "initial_peers": first.addresses}).wait_for_code()
    warned = first.finish()["warnings"]
    assert f"min_peers=2, and none of the {made} steps of this peer of run 'test'" in first.error
    assert [
        text
        for text in warned
        if text.startswith("Step 1 of run 'test' has averaged gradients with 1 of 2 peers")
    ]


@pytest.fixture
def pair(start):
    """Two peers that have made a step together, and would wait for each other for an hour."""
    return next(filter(None, (pair_that_met(start) for _ in range(5))))


def pair_that_met(start):
    """Two such peers; None if one makes its first step alone, as on a busy machine, and waits in
    the second.
    """
    peers = start_two(start, {**SLOW, "min_peers": 2})
    if peers[0].wait_for("step")["joint"]:
        return peers
    for peer in peers:
        peer.end()
    return None


def test_a_peer_that_was_killed_is_not_waited_for(pair, stop_at):
    first, second = pair
    before = max(first.steps)
    os.kill(second.group, signal.SIGKILL)
    first.wait_for("step", number=before + 3, timeout_s=120)
    stop_at.touch()
    first.finish()
    assert first.error is None
    assert first.events[-2]["peers"] == 1


def test_a_signal_to_the_whole_group_ends_the_peer(pair):
    """As `timeout` sends it, and hivemind's processes would end before the step that they are
    needed for.
    """
    first, second = pair
    os.kill(second.group, signal.SIGKILL)
    os.killpg(first.group, signal.SIGTERM)
    assert first.wait_for_code(120) == 128 + signal.SIGTERM
    assert "has ended" not in first.errors


@pytest.mark.parametrize("part", ["state_averager", "grad_averager"])
def test_a_part_that_ends_is_an_error_and_no_wait(start, part):
    """As it ends by a lack of memory: the next step asks it for a round with the other peer."""
    each_batch = {**SLOW, "min_peers": 2, "target_batch_size": 8}
    first = start(seed=0, options=each_batch)
    second = start(seed=1, options={**each_batch, "initial_peers": first.addresses}, kills=part)
    second.finish(150)
    assert "A part of this peer has ended in the middle of run 'test'" in second.error


def test_a_peer_behind_a_firewall_takes_part(start, stop_at):
    """It connects to the others, and nobody to it; the run can't begin with it."""
    first = start(seed=0, options={"min_peers": 2})
    second = start(
        seed=1, options={"min_peers": 2, "initial_peers": first.addresses, "client_mode": True}
    )
    await_equal_steps(first, second, count=2, after=0)
    assert second.addresses == []
    stop_at.touch()
    assert [peer.finish()["event"] for peer in (first, second)] == ["end", "end"]
    assert (first.error, second.error) == (None, None)


@pytest.mark.slow
def test_peers_train_on_with_compression_and_averages_in_the_background(start, stop_at):
    """Weights of joint steps are near each other, and no longer equal: eight bits and half
    precision round.
    """
    averaging = {
        "compression": "uniform_8bit",
        "state_compression": "float16",
        "delay_state_averaging": True,
    }
    peers = start_two(start, {"averaging": averaging, "min_peers": 2})
    for peer in peers:
        peer.wait_for("step", number=6)
    stop_at.touch()
    for peer in peers:
        peer.finish()
        assert peer.error is None
        assert max(step["joint"] for step in peer.steps.values()) >= 3
    apart = distances(*peers)
    assert len(apart) >= 3
    assert 1e-12 < max(apart.values()) < 0.3
