"""Data and model axes, and parameters that are cut."""

import pytest
from test_one_process import run_program


@pytest.fixture(scope="module")
def told():
    return run_program("mesh_program.py")


def test_a_mesh_with_a_model_axis_trains_as_one_device(told):
    assert told["mesh"] < 1e-5
    assert (told["num_devices"], told["world_size"]) == (4, 1)


def test_parameters_lie_along_the_model_axis(told):
    """In the end of training, and not only where they began."""
    assert told["middle"].startswith("{devices=[2,1,2]"), told["middle"]
    assert "devices=[2,1,2]" not in told["first"]


def test_fsdp_trains_as_one_device_with_every_parameter_cut(told):
    assert told["fsdp"] < 1e-5
    assert told["hooks"] == [0, 0, 0], "a run leaves its hooks on the user's layers"
    assert all("devices=[4" in layout or "devices=[1,4" in layout for layout in told["cut"]), told[
        "cut"
    ]


def test_what_does_not_fit_is_refused(told):
    assert "no parameter has such a name. There are first.weight" in told["patterns"]
    assert "cuts 'middle.weight' over 'tensor', and the mesh has data" in told["axes"]
    assert (
        "'middle.weight' has 2 dimensions, and parameter_shardings has 1 axes" in told["dimensions"]
    )
    assert "mesh={'data': 3} does not make up 4 devices" in told["sizes"]


def test_the_number_of_devices_is_chosen_once_a_process(told):
    assert "set CPU_NUM_DEVICES=2" in told["other_devices"]
