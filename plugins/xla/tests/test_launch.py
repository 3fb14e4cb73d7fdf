"""A process a device, by torch_xla's own launch; and other ways to start ranks, in which its
collectives do nothing.
"""

import pytest
from test_one_process import run_program


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return run_program("launched_program.py", tmp_path_factory.mktemp("launch"))


def test_ddp_spawn_trains_through_torch_xla(told):
    assert told["strategy"] == "XLAStrategy"
    assert told["trained"] < 1e-5


def test_a_checkpoint_of_ddp_goes_on_here(told):
    """Of two processes of a CPU."""
    assert told["resumed"] < 1e-5


def test_the_error_of_a_rank_arrives(told):
    text, rank = told["error"]
    assert rank == 0
    assert "ValueError: the user's step fails" in text
    assert "training_step" in text


def test_ranks_that_torch_xla_does_not_know_are_an_error(told):
    assert len(told["trap"]) == 2
    for text in told["trap"]:
        assert "2 processes, and torch_xla counts 1 devices" in text
        assert "collectives would do nothing" in text
