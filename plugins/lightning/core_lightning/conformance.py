"""The conformance suites of core-lightning. Imported by `core check` and the tests only: it needs
pytest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from core_testing import CheckpointIOConformance, CheckpointReaderConformance


class TestLightningFile(CheckpointIOConformance):
    """One file under Lightning's keys."""

    alias = "lightning"


class TestLightningReader(CheckpointReaderConformance):
    """A file of Lightning itself."""

    alias = "lightning"

    def content(self) -> dict[str, Any]:
        """The sections that Lightning's Trainer writes within the first epoch."""
        weights = OrderedDict({"layer.weight": torch.ones(2, 3), "layer.bias": torch.zeros(2)})
        momenta = {
            index: {"momentum_buffer": tensor.clone()}
            for index, tensor in enumerate(weights.values())
        }
        group = {"lr": 0.1, "momentum": 0.9, "params": [0, 1]}
        done = {"ready": 3, "started": 3, "processed": 3, "completed": 3}
        return {
            "epoch": 0,
            "global_step": 3,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": weights,
            "loops": {
                "fit_loop": {
                    "epoch_loop.batch_progress": {
                        "total": done,
                        "current": done,
                        "is_last_batch": False,
                    },
                    "epoch_progress": {"current": {**done, "processed": 0, "completed": 0}},
                }
            },
            "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
            "optimizer_states": [{"state": momenta, "param_groups": [group]}],
            "lr_schedulers": [{"last_epoch": 0}],
            "hparams_name": "kwargs",
            "hyper_parameters": {"width": 3},
            "theirs": {"kept": 5},
        }
