"""What callbacks forget when they serve a later fit. That it is asked of them,
`test_model_checkpoint.py` shows.
"""

import pytest
import torch

from core.callbacks import ModelPruning, SpikeGuard, StragglerDetection, ThroughputMonitor
from core_parallel import Timeline

GUARD = {
    "values": {"highest loss": [1.0]},
    "num_skipped": 2,
    "num_in_a_row": 1,
    "left_out": [],
    "num_ranks": 1,
}


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (SpikeGuard, {**GUARD, "num_returns": 1}),
        (ThroughputMonitor, {"samples": 8, "tokens": 9}),
        (
            lambda: ModelPruning("l1_unstructured"),
            {"masks": {"a": torch.ones(1)}, "first": {"a": torch.ones(1)}},
        ),
    ],
)
def test_states(make, state):
    callback = make()
    callback.load_state_dict(state)
    assert callback.state_dict() != make().state_dict()
    callback.reset_for_fit()
    assert callback.state_dict() == make().state_dict()


@pytest.mark.parametrize(
    ("callback", "found"),
    [
        (StragglerDetection(), {"stragglers": [1], "seconds": [{}]}),
        (Timeline(), {"rows": (1,), "duration_s": 1.0}),
    ],
)
def test_findings(callback, found):
    vars(callback).update(found)
    callback.reset_for_fit()
    assert not any(getattr(callback, name) for name in found)
