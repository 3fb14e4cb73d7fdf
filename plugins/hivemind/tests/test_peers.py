"""Real peers on this machine: programs of their own, which find each other by their addresses."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from peers import Peer, alive_in_session

SLOW = {"averaging_timeout": 3600.0, "tracker_options": {"default_refresh_period": 0.1, "metadata_expiration": 3600.0}}
IN_THREES = {"averager_options": {"request_timeout": 1.0, "target_group_size": 3}}

pytestmark = pytest.mark.timeout(900)  # for programs on two cores that others may use too


def sockets():
    """Files of sockets that nobody listens to: what runs beside the test has some too."""
    alive = Path("/proc/net/unix").read_text()
    return {path for path in Path("/tmp").glob("hivemind-*") if str(path) not in alive}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two peers begin; a third joins in the middle, and is killed; two more have misunderstood something."""
    stop_at, before = tmp_path_factory.mktemp("run") / "stop", sockets()
    with ExitStack() as ending:

        def start(**told):
            peer = Peer(stop_at=stop_at, **told)
            ending.callback(peer.end)
            return peer

        first = start(seed=0, options={**IN_THREES, "min_peers": 2})
        known = {**IN_THREES, "initial_peers": first.addresses}
        second = start(seed=1, options={**known, "min_peers": 2})
        begun = await_equal_steps(first, second, count=2, after=0)
        third = start(seed=2, options=known, joint_steps=3)
        third.wait_for_death()
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
            **{"first": first, "second": second, "third": third, "other_run": other_run, "other_model": other_model},
            **{"ends": ends, "begun": begun, "killed_at": killed_at, "sockets_before": before},
        )


def await_equal_steps(*peers, count, after, timeout_s=300):
    """Wait for equal weights after so many later steps; the last step by then. A busy machine misses some rounds."""
    deadline = time.monotonic() + timeout_s
    while len([number for number in equal_steps(*peers) if number > after]) < count:
        assert time.monotonic() < deadline, distances(*peers)
        peers[0].wait_for("step", number=max(peers[0].steps, default=0) + 1)
    return max(peers[0].steps)


def equal_steps(*peers):
    """Steps that all of these peers have made, and after which their weights are equal, but for rounding in float64."""
    return [number for number, furthest in distances(*peers).items() if furthest < 1e-12]


def distances(*peers):
    """By step that all of these peers have made, how far their weights are apart."""
    common = set.intersection(*(set(peer.steps) for peer in peers))
    rows = {number: zip(*(peer.steps[number]["weights"] for peer in peers), strict=True) for number in sorted(common)}
    return {number: max(max(row) - min(row) for row in weights) for number, weights in rows.items()}


def test_weights_are_equal_after_each_joint_step(run):
    pair = equal_steps(run.first, run.second)
    assert len([number for number in pair if number <= run.begun]) >= 2
    apart = set(run.first.steps) & set(run.second.steps) - set(pair)
    told = [text for end in run.ends for text in end["warnings"] if "weights of peers may differ" in text]
    assert not apart or told, f"weights differ after {sorted(apart)}, and nothing was said"


def test_a_peer_joins_in_the_middle_and_gets_the_state(run):
    number, joined = min(run.third.steps.items())
    assert number > run.begun
    assert joined["counted"] == number, "Adam's count is the run's"
    assert joined["rate"] == 0.05 * 0.5 ** (number // 2)
    assert equal_steps(run.first, run.second, run.third), distances(run.first, run.second, run.third)


def test_a_peer_is_killed_and_the_others_go_on(run):
    assert [number for number in equal_steps(run.first, run.second) if number > run.killed_at], distances(
        run.first, run.second
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
    deadline = time.monotonic() + 20
    while any(alive_in_session(peer.group) for peer in peers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [alive_in_session(peer.group) for peer in peers] == [[]] * len(peers)
    assert sockets() <= run.sockets_before


def test_peers_that_do_not_come_are_an_error(tmp_path):
    peer = Peer(stop_at=tmp_path / "stop", steps=2, options={"min_peers": 2}, patience_s=2)
    assert peer.finish()["step"] == 0
    assert "min_peers=2, and 1 of run 'test' came within 2 s" in peer.error


def test_quick_steps_are_made_together(tmp_path):
    """Steps that are over sooner than peers hear of each other."""
    options = {"min_peers": 2, "matchmaking_time": 3.0, "averaging_timeout": 30.0, "tracker_options": {}}
    with ExitStack() as ending:
        peers = []
        for seed in (0, 1):
            known = {"initial_peers": peers[0].addresses} if peers else {}
            peers.append(Peer(stop_at=tmp_path / "stop", steps=6, seed=seed, pause=0, options={**options, **known}))
            ending.callback(peers[-1].end)
        assert [peer.finish()["step"] for peer in peers] == [6, 6]
    assert [peer.error for peer in peers] == [None, None]
    assert min(peer.steps[6]["joint"] for peer in peers) >= 4
    assert len(equal_steps(*peers)) >= 4, distances(*peers)


@pytest.mark.parametrize(("steps", "made"), [(-1, 3), (2, 2)], ids=["goes on", "ends before"])
def test_a_run_of_min_peers_that_nobody_shares_is_an_error(tmp_path, steps, made):
    """The other one is here at the beginning, and makes no step."""
    with ExitStack() as ending:

        def start(**told):
            peer = Peer(stop_at=tmp_path / "stop", **told)
            ending.callback(peer.end)
            return peer

        first = start(steps=steps, options={"min_peers": 2})
        start(dies=True, options={"min_peers": 2, "initial_peers": first.addresses}).wait_for_death()
        warned = first.finish()["warnings"]
    assert f"min_peers=2, and none of the {made} steps of this peer of run 'test'" in first.error
    assert [text for text in warned if text.startswith("Step 1 of run 'test' has averaged gradients with 1 of 2 peers")]


@pytest.fixture
def pair(tmp_path):
    """Two peers that have made a step together, and would wait for each other for an hour."""
    with ExitStack() as ending:
        yield next(filter(None, (pair_that_met(tmp_path, ending) for _ in range(5))))


def pair_that_met(tmp_path, ending):
    """Two such peers; None if one makes its first step alone, as on a busy machine, and waits in the second."""
    patient = {**SLOW, "min_peers": 2}
    peers = []
    for seed in (0, 1):
        known = {"initial_peers": peers[0].addresses} if peers else {}
        peers.append(Peer(stop_at=tmp_path / "stop", seed=seed, options={**patient, **known}))
        ending.callback(peers[-1].end)
    if peers[0].wait_for("step")["joint"]:
        return SimpleNamespace(first=peers[0], second=peers[1], stop_at=tmp_path / "stop")
    for peer in peers:
        peer.end()
    return None


def test_a_peer_that_was_killed_is_not_waited_for(pair):
    before = max(pair.first.steps)
    os.kill(pair.second.group, signal.SIGKILL)
    pair.first.wait_for("step", number=before + 3, timeout_s=120)
    pair.stop_at.touch()
    pair.first.finish()
    assert pair.first.error is None
    assert pair.first.events[-2]["peers"] == 1


def test_a_signal_to_the_whole_group_ends_the_peer(pair):
    """As `timeout` sends it, and hivemind's processes would end before the step that they are needed for."""
    os.kill(pair.second.group, signal.SIGKILL)
    os.killpg(pair.first.group, signal.SIGTERM)
    assert pair.first.wait_for_code(120) == 128 + signal.SIGTERM
    assert "has ended" not in pair.first.errors


@pytest.mark.parametrize("part", ["state_averager", "grad_averager"])
def test_a_part_that_ends_is_an_error_and_no_wait(tmp_path, part):
    """As it ends by a lack of memory: the next step asks it for a round with the other peer."""
    with ExitStack() as ending:

        def start(**told):
            peer = Peer(stop_at=tmp_path / "stop", **told)
            ending.callback(peer.end)
            return peer

        each_batch = {**SLOW, "min_peers": 2, "target_batch_size": 8}
        first = start(seed=0, options=each_batch)
        second = start(seed=1, options={**each_batch, "initial_peers": first.addresses}, kills=part)
        second.finish(150)
        assert "A part of this peer has ended in the middle of run 'test'" in second.error


def test_a_peer_behind_a_firewall_takes_part(tmp_path):
    """It connects to the others, and nobody to it; the run can't begin with it."""
    with ExitStack() as ending:

        def start(**told):
            peer = Peer(stop_at=tmp_path / "stop", **told)
            ending.callback(peer.end)
            return peer

        first = start(seed=0, options={"min_peers": 2})
        second = start(seed=1, options={"min_peers": 2, "initial_peers": first.addresses, "client_mode": True})
        await_equal_steps(first, second, count=2, after=0)
        assert second.addresses == []
        (tmp_path / "stop").touch()
        assert [peer.finish()["event"] for peer in (first, second)] == ["end", "end"]
        assert (first.error, second.error) == (None, None)


@pytest.mark.slow
def test_peers_train_on_with_compression_and_averages_in_the_background(tmp_path):
    """Weights of joint steps are near each other, and no longer equal: eight bits and half precision round."""
    options = {"compression": "uniform_8bit", "state_compression": "float16", "delay_state_averaging": True}
    with ExitStack() as ending:

        def start(**told):
            peer = Peer(stop_at=tmp_path / "stop", **told)
            ending.callback(peer.end)
            return peer

        first = start(seed=0, options={**options, "min_peers": 2})
        second = start(seed=1, options={**options, "min_peers": 2, "initial_peers": first.addresses})
        for peer in (first, second):
            peer.wait_for("step", number=6)
        (tmp_path / "stop").touch()
        for peer in (first, second):
            peer.finish()
            assert peer.error is None
            assert max(step["joint"] for step in peer.steps.values()) >= 3
    apart = distances(first, second)
    assert len(apart) >= 3
    assert 1e-12 < max(apart.values()) < 0.3
