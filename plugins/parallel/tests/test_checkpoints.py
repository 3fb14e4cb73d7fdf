"""A run goes on from a pipeline's checkpoint under other strategies, and from theirs in a pipeline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from axes import in_both_forms

from core.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from core_parallel import MeshParallelStrategy
from core_testing.cases import RESUMED
from core_testing.ranks import Backend, one_device
from core_testing.training import assert_equal_tensors, train

if TYPE_CHECKING:
    from pathlib import Path

_PIPELINE = partial(MeshParallelStrategy, pipeline=2)
_BACKENDS: dict[str, tuple[Any, int, int]] = {
    "pipeline": (_PIPELINE, 2, 1),
    "pipelines": (_PIPELINE, 4, 2),
    "GPipe": (partial(_PIPELINE, schedule="GPipe"), 2, 1),
    "1F1B": (partial(_PIPELINE, schedule="1F1B"), 2, 1),
    "one device": (SingleDeviceStrategy, 1, 1),
    "ddp": (DDPStrategy, 2, 2),
    "fsdp": (FSDPStrategy, 2, 2),
}


def _with(name: str, form: Any) -> Backend:
    strategy, num_processes, data_parallel_size = _BACKENDS[name]
    return Backend(lambda: strategy(checkpoint_io=form()), "cpu", num_processes, data_parallel_size)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(
    ("source", "target", "form"),
    in_both_forms(
        {
            "pipeline-ddp": ("pipeline", "ddp"),
            "pipelines-fsdp": ("pipelines", "fsdp"),
            "fsdp-pipeline": ("fsdp", "pipeline"),
            "ddp-pipelines": ("ddp", "pipelines"),
            "pipelines-pipelines": ("pipelines", "pipelines"),
            "GPipe-ddp": ("GPipe", "ddp"),
            "1F1B-fsdp": ("1F1B", "fsdp"),
            "one-1F1B": ("one device", "1F1B"),
            "ddp-GPipe": ("ddp", "GPipe"),
        },
        *("pipelines-fsdp", "GPipe-ddp", "one-1F1B", "fsdp-pipeline in one file"),
    ),
)
def test_a_run_goes_on_in_the_middle_of_an_epoch(source: str, target: str, form: Any, tmp_path: Path) -> None:
    path, saves, loads = tmp_path / "step.ckpt", _with(source, form), _with(target, form)
    saves.run(partial(train, save_at=4, path=path), RESUMED)
    run: Any = loads.run(partial(train, ckpt_path=path), RESUMED)[0]
    expected: Any = one_device("cpu").run(train, RESUMED)[0]
    assert run.num_steps == expected.num_steps
    assert_equal_tensors(run.weights, expected.weights, 1e-12)
    for name, entry in expected.optimizer.items():
        assert_equal_tensors(run.optimizer[name], entry, 1e-12)
