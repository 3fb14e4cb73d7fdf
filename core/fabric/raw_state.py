"""Files that were written with plain `torch.save`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from core.checkpoint.file import torch_file
from core.checkpoint.file.location import location_of
from core.contract import CheckpointCorruptedError, CheckpointError, CheckpointNotFoundError
from core.session import optimizer_state, same_class
from core.text.plain_file import NotAFileError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from core.contract import Strategy
    from core.contract.checkpoint_io import PathLike


def load(
    strategy: Strategy, path: PathLike, target: nn.Module | Optimizer, *, strict: bool
) -> None:
    """All ranks. Restore from what `torch.save(target.state_dict(), path)` wrote; see
    `Fabric.load_raw`.
    """
    state = _read(path)
    if isinstance(target, nn.Module):
        strategy.load_module_state_dict(target, state, strict=strict)
        return
    if not {"state", "param_groups"} <= state.keys():
        raise CheckpointError(
            f"{path} holds {sorted(map(str, state))}, which is not the state of an optimizer. "
            "Expected 'state' and 'param_groups', as torch.save(optimizer.state_dict(), path) "
            "writes them."
        )
    names = strategy.parameter_names(target)
    num_saved = sum(len(group["params"]) for group in state["param_groups"])
    if num_saved != len(names):
        raise CheckpointError(
            f"{path} is the state of an optimizer of {num_saved} parameters; this one has "
            f"{len(names)}. Build it over as many, in the same order."
        )
    same_class.check_optimizer(target, state)
    # torch saves positions, and strategies take names.
    strategy.load_optimizer_state_dict(target, optimizer_state.to_named(state, names))


def _read(path: PathLike) -> dict[str, Any]:
    try:
        with location_of(path).open() as file:
            state = torch_file.unpickle(file)
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(
            f"There is no file at {path}. Expected one that torch.save wrote."
        ) from error
    except NotAFileError as error:
        raise CheckpointError(
            f"{error}, and load_raw reads one file that torch.save wrote. A checkpoint that Fabric "
            "or a Trainer saved may be a folder: load it by fabric.load(path, state)."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}.") from error
    except Exception as error:  # whatever torch says of a file that isn't one of its own
        raise CheckpointCorruptedError(
            f"{path} is damaged, or not a file of tensors and plain values that torch.save wrote: "
            f"{error}"
        ) from error
    if not isinstance(state, dict):
        raise CheckpointCorruptedError(
            f"{path} holds {type(state).__name__}; expected what state_dict() returns."
        )
    return state
