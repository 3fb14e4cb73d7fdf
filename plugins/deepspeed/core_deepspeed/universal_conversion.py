"""Making a universal checkpoint, by DeepSpeed's own `ds_to_universal`."""

from __future__ import annotations

import argparse
import pickle
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core import CheckpointError
from core.checkpoint import TorchCheckpointIO
from core_deepspeed import library, model_files, native_files
from core_deepspeed.native import NativeCheckpointIO
from core_deepspeed.universal import BESIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core import Collectives, PathLike

_KEPT = {"exp_avg", "exp_avg_sq", "step"}
"""The parts of an optimizer's state that DeepSpeed carries over; it leaves out any other without a
word.
"""


def native_files_of(source: PathLike) -> Path:
    """The folder with DeepSpeed's files, in the one at `source`.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointError: it is something else.
    """
    native = NativeCheckpointIO()
    if Path(source).exists() and not native.exists(source):
        raise CheckpointError(
            f"{str(source)!r} isn't of DeepSpeed's own layout: expected a folder with the file "
            f"{native.last_file!r}, as DeepSpeedStrategy(deepspeed_checkpoint='native') writes it. "
            "Universal checkpoints are made of that only; what core has saved in its own form goes "
            "on under any stage and number of processes as it is."
        )
    return native.files_of(source)


def make(files: Path, folder: Path, collectives: Collectives) -> None:
    """One process. Fill `folder` with a universal checkpoint of DeepSpeed's files.

    Raises:
        CheckpointError: DeepSpeed can't, or would leave something out.
    """
    _check_characters(files, folder)
    if (files / "offloaded_tensors").exists():
        raise CheckpointError(
            f"{str(files)!r} was saved with the optimizer's state on NVMe, of which DeepSpeed "
            "makes no universal checkpoint. Go on from it as it is, under the same stage and "
            "number of processes."
        )
    library.load()
    from deepspeed.utils.zero_to_fp32 import get_optim_files

    try:
        ranks = model_files.read(files)
        kept = _kept_by_optimizer(get_optim_files(str(files))[0], len(ranks[0]["param_shapes"]))
        _run(files, folder / native_files.TAG)
    except CheckpointError:
        raise
    except Exception as error:  # whatever DeepSpeed and pickle raise
        raise CheckpointError(
            f"DeepSpeed can't make a universal checkpoint of {str(files)!r}: {library.cause(error)}"
        ) from error
    with model_files.as_written(files):
        beside = _beside(ranks, [entry["step"] for entry in kept])
    TorchCheckpointIO().save_checkpoint(beside, folder / BESIDE, collectives=collectives)


def _check_characters(*paths: Path) -> None:
    """DeepSpeed takes paths for patterns: some files it wouldn't find, and write the checkpoint
    without them.
    """
    for path in paths:
        if found := re.search(r"[][*?+(){}|^$\\]", str(path)):
            raise CheckpointError(
                f"{str(path)!r} has a {found[0]!r} in it, and DeepSpeed would take it for a "
                "pattern. Move the checkpoint, or name another target."
            )


def _run(files: Path, target: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    arguments = argparse.Namespace(
        input_folder=str(files),
        output_folder=str(target),
        num_extract_workers=1,  # in this process
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,  # says only which version of the form it is
    )
    with native_files.quietly():
        ds_to_universal.main(arguments)


def _kept_by_optimizer(path: str, num_groups: int) -> list[dict[str, Any]]:
    """The state that rank 0 keeps for each flat tensor.

    Raises:
        CheckpointError: something else than an Adam that has stepped.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    known = [
        DynamicLossScaler,
        LossScaler,
        ZeroStageEnum,
        fragment_address,
        (_member, "builtins.getattr"),
    ]
    with torch.serialization.safe_globals(known):
        saved = torch.load(path, map_location="cpu", weights_only=True)["optimizer_state_dict"]
    below_3 = saved.get("base_optimizer_state")
    kept = (below_3 or saved["optimizer_state_dict"])["state"]
    entries = [kept.get(number, {}) for number in range(num_groups)]
    for entry in entries:
        if entry.keys() != _KEPT:
            raise CheckpointError(
                "DeepSpeed makes universal checkpoints of Adam's and AdamW's state, "
                f"{sorted(_KEPT)}, and of no other. Here are {sorted(entry)}. Save after the first "
                "step, and without amsgrad; or leave deepspeed_checkpoint out: what core saves in "
                "its own form goes on under any stage."
            )
    return entries


def _member(kind: Any, name: str) -> Any:
    """The member of an enum. Python 3.11.0 to 3.11.3 pickles one as a call of `getattr`, for which
    this stands.

    Raises:
        UnpicklingError: it is no enum.
    """
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"getattr of {kind!r}, which is no enum")
    return kind[name]


def _beside(ranks: Sequence[dict[str, Any]], steps: Sequence[Any]) -> dict[str, Any]:
    """The content that DeepSpeed's files don't have by the user's names, or at all.

    Returns:
        rest: the state without what DeepSpeed has, for which there are marks.
        module: see `model_files.module_of`.
        shapes, steps: of the trained, by DeepSpeed's names.
    """
    groups = ranks[0]["param_shapes"]
    return {
        "rest": ranks[0].get(native_files.REST, {"model": native_files.module_mark()}),
        "module": model_files.module_of(ranks),
        "shapes": {name: list(shape) for group in groups for name, shape in group.items()},
        "steps": {
            name: float(step) for group, step in zip(groups, steps, strict=True) for name in group
        },
    }
