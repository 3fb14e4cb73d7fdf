"""Side effects of the vendor's library, as its published source has them, and a run that isn't to
notice.
"""

import json
import subprocess
import sys

import pytest
import simulated
import torch
from test_simulated import pytestmark  # noqa: F401  # the same releases of torch

_OF_LAUNCHERS = ("MASTER_", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_")


def told_by(*arguments, **variables):
    own = {
        name: value
        for name, value in simulated.variables().items()
        if not name.startswith(_OF_LAUNCHERS)
    }
    command = [sys.executable, simulated.HERE / "vendor_program.py", *arguments]
    # Not forked from a process that has begun with other variables: which of them it began with is
    # looked at.
    done = subprocess.run(
        command, capture_output=True, text=True, env=own | variables, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told():
    return told_by()


@pytest.mark.slow
def test_an_import_leaves_the_environment_as_it_was(told):
    """It would have all runs of a machine meet at port 12345."""
    assert told["after"] == told["before"]
    assert told["port"] != 12345


@pytest.mark.slow
def test_a_script_that_imports_the_library_itself_gets_a_port_of_its_own():
    left, port = told_by("--import")
    assert left == "12345"
    assert port != 12345


@pytest.mark.slow
def test_a_port_that_the_user_has_chosen_stays():
    assert told_by("--import", MASTER_ADDR="localhost", MASTER_PORT="12345")[1] == 12345


@pytest.mark.slow
def test_an_optimizer_made_before_trains_what_the_module_has_now(told):
    """In lazy mode the library puts other objects into the module."""
    on_hpu, on_cpu = told["hpu"], told["cpu"]
    assert on_hpu["is replaced"]
    assert on_hpu["holds"]
    assert on_hpu["names"] == on_cpu["names"] == ["first.weight", "first.bias", "last.bias"]
    for name, value in on_cpu["weights"].items():
        torch.testing.assert_close(
            torch.tensor(on_hpu["weights"][name]), torch.tensor(value), rtol=0, atol=1e-5
        )


@pytest.mark.slow
def test_tied_weights_stay_tied_and_frozen_ones_frozen(told):
    assert told["hpu"]["is tied"]
    assert told["hpu"]["frozen"]
