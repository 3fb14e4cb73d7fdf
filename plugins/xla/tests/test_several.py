"""Several processes of torch_xla; their collectives go over gloo, which is all that the stand-in
replaces.
"""

import pytest
from test_one_process import run_program


@pytest.fixture(scope="module")
def told():
    return run_program("several_program.py")


def test_tensors_of_the_device_are_gathered_in_the_order_of_ranks(told):
    """torch_xla counts the processes in another order here."""
    assert (
        told["gathered"] == told["over the group"] == told["on the CPU"] == [[1.0, 2.0], [2.0, 4.0]]
    )
    assert told["scalars"] == [0, 1]
    assert told["truths"] == [[False], [True]]
    assert told["device"] == "xla:0"


def test_gradients_flow_back_to_the_rank_that_they_belong_to(told):
    """Row 0 is weighed by 1 on rank 0, and by 2 on rank 1."""
    assert told["gradient"] == [3.0, 3.0]


def test_other_collectives_take_tensors_of_the_device(told):
    assert told["sum"] == [3.0, 6.0]
    assert told["from rank 1"] == [2.0, 4.0]


def test_metrics_and_predictions_are_those_of_one_device(told):
    assert told["furthest"] < 1e-5
    assert told["measured"] == pytest.approx(told["measured on one"], abs=1e-5)
    assert (told["num_seen"], told["num_seen on one"]) == (1 + 2, 1)
    assert told["gathered shape"] == [2, 8]
    assert told["left"], "a run leaves its way to exchange states on the user's metrics"


def test_collectives_that_reach_others_than_the_ranks_are_an_error(told):
    assert (
        "torch_xla's collectives reach ranks [0, 0], and the run has 2 processes"
        in told["unreplicated"]
    )
