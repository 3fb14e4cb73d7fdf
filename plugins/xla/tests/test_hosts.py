"""Two hosts that run one program over the devices of both; see `two_hosts.py` for what stands in
for what.
"""

import json
import os
import subprocess
import sys

import pytest
from test_one_process import HERE

from core.cluster import LocalEnvironment


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each host has told."""
    folder = tmp_path_factory.mktemp("hosts")
    shared = {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(LocalEnvironment().main_port)
    command = [sys.executable, "-W", "ignore", HERE / "hosts_program.py", folder]
    hosts = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "NODE_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        outputs = [host.communicate(timeout=280) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], outputs
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_a_process_a_host_has_one_share_of_the_data(told):
    assert [host["collectives"]["world"] for host in told] == [[0, 2, 8, 1], [1, 2, 8, 1]]


def test_every_value_counts_once_and_is_that_of_one_device(told):
    one = told[0]["one"]
    for host in told:
        assert host["hosts"]["losses"] == pytest.approx(one["losses"], abs=1e-5)
        assert host["hosts"]["values"] == pytest.approx(one["values"], rel=1e-4)
        assert {name: host["hosts"][name] for name in ("samples", "seen", "step")} == {
            "samples": 320,
            "seen": 160,
            "step": 20,
        }
        assert host["predictions"] == 160


def test_hosts_draw_the_same_and_begin_with_the_weights_of_the_first(told):
    """The second has another seed and other weights."""
    assert told[0]["hosts"]["noise"] == told[1]["hosts"]["noise"] == told[0]["one"]["noise"]


def test_no_host_computes_what_the_others_do_not(told):
    """With loggers, checkpoints and predictions, of which rank 0 does more. On real hosts that
    would wait for ever.
    """
    assert told[0]["graphs"] == told[1]["graphs"]


def test_a_checkpoint_of_several_hosts_goes_on_anywhere(told):
    assert told[0]["resumed"] < 1e-5


def test_collectives_are_over_hosts(told):
    for host in told:
        values = host["collectives"]
        assert (values["sum"], values["gathered"], values["any"], values["from 1"]) == (
            3.0,
            [1.0, 2.0],
            True,
            2.0,
        )
    assert [host["collectives"]["objects"] for host in told] == [True, False]


def test_gradients_through_a_gathered_tensor_are_the_same_on_all_hosts(told):
    """The loss weighs the first row by 1 and the second by 2."""
    assert [host["collectives"]["gradient"] for host in told] == [[3.0] * 4] * 2


def test_what_hosts_do_not_have_in_common_is_an_error_on_all(told):
    for host in told:
        assert "the hosts have [1, 0] of them" in host["collectives"]["alone"]
        assert "The hosts' loaders give different first batches" in host["unlike batches"]
        assert (
            "'weight', (2, 2) float32 on rank 0\n  'weight', (3, 2) float32 on rank 1"
            in host["unlike modules"]
        )
