"""A run that is stopped after any optimizer step and goes on is, bit by bit, the run that was never
stopped.
"""

import os

import pytest

from core_testing import in_one_process
from support.resuming import (
    Case,
    SaveAlways,
    adamw_by_step,
    count_batches,
    on_plateau,
    on_plateau_by_step,
    sgd_by_epoch,
    train,
)

CASES = {
    "AdamW, a scheduler by step": Case(),
    "SGD, a scheduler by epoch": Case(sgd_by_epoch),
    "a plateau of validation": Case(on_plateau("val_loss"), validates=True),
    "a plateau of training": Case(on_plateau("train_loss_epoch")),
    "a plateau by step": Case(on_plateau_by_step),
    "a plateau of validation by step": Case(
        on_plateau("val_loss", interval="step", frequency=2),
        validates=True,
        trainer={"val_check_interval": 3},
    ),
    "validation within epochs": Case(validates=True, trainer={"val_check_interval": 2}),
    "validation every second epoch": Case(
        on_plateau("largest"), validates=True, trainer={"check_val_every_n_epoch": 2}
    ),
    "accumulation": Case(adamw_by_step, trainer={"accumulate_grad_batches": 2}),
    "accumulation and validation": Case(
        validates=True, trainer={"accumulate_grad_batches": 2, "val_check_interval": 1}
    ),
    "a generator of the user's": Case(loader={"user_generator": True}),
    "a weighted sampler": Case(loader={"weighted": True}),
    "no shuffling": Case(sgd_by_epoch, loader={"shuffle": False}),
    "augmentation in the main process": Case(augments=True, validates=True),
    "the loader's own order": Case(augments=True, trainer={"use_distributed_sampler": False}),
    "a folder": Case(trainer={"plugins": None}),
    "clipping": Case(sgd_by_epoch, trainer={"gradient_clip_val": 0.1}),
}
WITH_WORKERS = {
    "two workers": Case(validates=True, loader={"num_workers": 2}),
    "two workers, a generator of the user's": Case(
        loader={"num_workers": 2, "user_generator": True}
    ),
    "two workers that augment": Case(
        augments=True, loader={"num_workers": 2}, trainer={"seed_samples": True}
    ),
}


def differences(case, folder, num_ranks=1):
    """The differences after a resume from each checkpoint, on this rank."""
    events, weights, _ = train(case, SaveAlways(folder), num_ranks=num_ranks)
    total = count_batches(events)
    found, names = [], sorted(name for name in os.listdir(folder) if name.endswith(".ckpt"))
    assert total == 10
    assert len(names) >= total + 2
    for name in names:
        path = os.path.join(folder, name)
        # Another seed: everything random has to come from the checkpoint.
        resumed, resumed_weights, done = train(case, num_ranks=num_ranks, ckpt_path=path, seed=99)
        if count_batches(resumed) != total - done or (
            resumed and resumed != events[-len(resumed) :]
        ):
            found.append((name, "events", events, resumed))
        elif resumed_weights != weights:
            found.append((name, "weights", weights, resumed_weights))
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_step(tmp_path, name):
    assert not differences(CASES[name], str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_every_step_with_loader_workers(tmp_path, name):
    assert not differences(WITH_WORKERS[name], str(tmp_path))


@pytest.mark.slow
def test_every_step_on_two_ranks(tmp_path):
    """One step of a run is the conformance kit's."""
    case = CASES["accumulation and validation"]
    assert in_one_process(differences, case, str(tmp_path), 2) == [[], []]
