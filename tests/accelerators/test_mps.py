"""Apple's GPU, simulated: torch's own device type `mps`, with what torch documents of it, computed
by the host.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from accelerators import simulated_metal
from core import ConfigurationError, Fabric
from core_testing import programs


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    if torch.backends.mps.is_built():
        pytest.skip("this torch was built with Metal")
    if simulated_metal.COMPILER is None:
        pytest.skip("the simulation is compiled, and there is no compiler")
    folder = tmp_path_factory.mktemp("mps")
    command = [
        sys.executable,
        Path(__file__).with_name("mps_program.py"),
        simulated_metal.build(folder),
        folder,
    ]
    done = programs.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_run_equals_one_on_the_cpu(facts):
    for name, (found, expected) in facts["runs"].items():
        assert (found.pop("device"), expected.pop("device")) == ("mps:0", "cpu"), name
        assert found["weights"] == expected["weights"], name
        # Under autocast a loss is float32 there, and bfloat16 on the CPU.
        assert found["logged"] == pytest.approx(
            expected["logged"], rel=1e-2 if "mixed" in name else 1e-6
        ), name


@pytest.mark.slow
def test_float16_is_scaled(facts):
    (expected, _), found = facts["runs"]["as it is"], facts["scaled"]
    # The scale is too large at first, and the steps until it fits are left out.
    assert found["logged"]["train_loss"] == pytest.approx(
        expected["logged"]["train_loss"], rel=0.05
    )


@pytest.mark.slow
def test_it_is_chosen_where_it_is(facts):
    assert facts["automatic"] == ["mps:0", "mps:0"]
    assert facts["memory"] == ["allocated_bytes", "driver_allocated_bytes", "recommended_max_bytes"]
    assert facts["random"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "64-true"}, r"Apple's GPUs have no float64. Use accelerator='cpu'"),
        ({"strategy": "ddp"}, "can't train on mps"),
        ({"strategy": "fsdp"}, "can't train on mps"),
    ],
)
def test_what_it_cannot_do_is_refused_before_any_work(monkeypatch, options, message):
    for name in ("is_built", "is_available"):
        monkeypatch.setattr(torch.backends.mps, name, lambda: True)
    assert Fabric(accelerator="mps", precision="16-true").device == torch.device("mps", 0)
    with pytest.raises(ConfigurationError, match=message):
        Fabric(accelerator="mps", **options)
