"""Makes folders for `from_pretrained` of checkpoints:
`core checkpoint convert last.ckpt folder --as transformers`.
"""

from __future__ import annotations

import json
import math
import mmap
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from core import CheckpointError, ShardedLeaf, TensorDescription
from core.checkpoint import EngineFolderIO, load_mapped
from core.checkpoint.building_blocks import digest_of, digests_of_file
from core_transformers.conversions import ties, to_files, units
from core_transformers.pretrained import MAX_SHARD_BYTES, add_config, described_files
from core_transformers.weight_files import NewFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transformers import PreTrainedModel

    from core import CheckpointIO, Collectives, PathLike

_AT_ONCE_BYTES = 64 << 20
"""Bytes of tensors that are read at once, if a unit hasn't more: each read opens the checkpoint
again.
"""


class TransformersCheckpointIO(EngineFolderIO):
    """Folders for `from_pretrained`, made from checkpoints, one tensor after the other. No run goes
    on from them.
    """

    engine = "transformers"
    last_file = "config.json"
    how_to_save = (
        "A folder for from_pretrained isn't a checkpoint from which a run goes on: write it by "
        "SavePretrained or save_pretrained, or make it from a checkpoint by `core checkpoint "
        "convert last.ckpt folder --as transformers`."
    )

    def load_checkpoint(
        self, path: PathLike, *, collectives: Collectives, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Refused: such a folder has weights, and no state of a run.

        Raises:
            CheckpointError: always.
        """
        self.require(path)
        raise CheckpointError(
            f"{str(path)!r} holds weights of transformers. Load them by load_pretrained."
        )

    def convert_checkpoint(
        self, source: PathLike, target: PathLike, *, reader: CheckpointIO, collectives: Collectives
    ) -> None:
        """One process. Write the model in a checkpoint of any strategy, of which a unit is in
        memory at a time.

        Its config is in the checkpoint, where LoadPretrained, SavePretrained or the user have left
        it, or in the file `config.json` beside the checkpoint. A file of another program is read
        whole.

        Raises:
            CheckpointError: it has no config, or no such model or several; or it can't be read.
        """
        state = reader.describe_checkpoint(source, collectives=collectives)
        is_described = state is not None
        if state is None:
            state = _mapped(source) or reader.load_checkpoint(source, collectives=collectives)
        model, entry, prefix = _model_in(state, Path(source))
        weights = state[entry]
        leaves = {name: weights[prefix + name] for name in _own_names(model)}

        def read(names: Sequence[str]) -> Mapping[str, torch.Tensor]:
            if not is_described:
                return {name: leaves[name] for name in names}
            wanted = {
                prefix + name: torch.empty(leaves[name].shape, dtype=leaves[name].dtype)
                for name in names
            }
            targets = _nothing_of(state) | {entry: _nothing_of(weights) | wanted}
            reader.load_checkpoint(source, collectives=collectives, state=targets)
            return {name: wanted[prefix + name] for name in names}

        _write(Path(target), model, leaves, read)


def _write(
    target: Path,
    model: PreTrainedModel,
    leaves: Mapping[str, Any],
    read: Callable[[Sequence[str]], Mapping[str, torch.Tensor]],
) -> None:
    in_files = units(model, list(leaves))
    files = NewFolder(
        target, described_files(partial(to_files, model), leaves, in_files), MAX_SHARD_BYTES
    )
    try:
        for group in _groups(in_files, leaves):
            tensors = read([name for unit in group for name in unit])
            for unit in group:
                for name, tensor in to_files(model, {own: tensors[own] for own in unit}).items():
                    files.write(name, tensor)
        add_config(files.scratch, model, leaves)
        files.finish()
    finally:
        files.remove()


def _groups(in_files: Sequence[list[str]], leaves: Mapping[str, Any]) -> Iterator[list[list[str]]]:
    group: list[list[str]] = []
    size = 0
    for unit in in_files:
        unit_size = sum(
            math.prod(leaves[name].shape) * leaves[name].dtype.itemsize for name in unit
        )
        if group and size + unit_size > _AT_ONCE_BYTES:
            yield group
            group, size = [], 0
        group.append(unit)
        size += unit_size
    yield group


def _mapped(source: PathLike) -> dict[str, Any] | None:
    """The state in a local file of core's, on mapped memory; None for another one, which `reader`
    knows.
    """
    path = Path(source)
    if not path.is_file() or not zipfile.is_zipfile(path):
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if digest_of(content) not in digests_of_file(path):
            return None
    state: dict[str, Any] = load_mapped(path)
    return state


def _nothing_of(value: Any) -> Any:
    """A state with a place in which nothing is filled for each tensor."""
    if isinstance(value, dict):
        return {key: _nothing_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nothing_of(item) for item in value]
    return ShardedLeaf(value.shape, value.dtype) if isinstance(value, TensorDescription) else value


def _own_names(model: PreTrainedModel) -> list[str]:
    """The names of what is saved of a model: of tied tensors one."""
    names = list(model.state_dict())
    tied = ties(model, names)
    return [name for name in names if name not in tied]


def _model_in(state: Mapping[str, Any], source: Path) -> tuple[PreTrainedModel, str, str]:
    """A model on the meta device, the entry of the state that has its weights, and their prefix
    there.

    Raises:
        CheckpointError: there is no config, or no model of it, or several.
    """
    configs = {json.dumps(each, sort_keys=True): each for each in _configs_in(state)}
    beside = source.absolute().with_name("config.json")
    if not configs and beside.is_file():
        configs[""] = json.loads(beside.read_text(encoding="utf-8"))
    if not configs:
        raise CheckpointError(
            f"{str(source)!r} doesn't say of which model of transformers it is, as it does where "
            "LoadPretrained or SavePretrained were among the callbacks. Put the model's "
            f"config.json beside it, at {str(beside)!r}."
        )
    models = [_made(config) for config in configs.values()]
    found = [(model, entry, prefix) for model in models for entry, prefix in _places(model, state)]
    if len(found) != 1:
        kinds = ", ".join(sorted({type(model).__name__ for model in models}))
        places = ", ".join(repr(f"{entry}: {prefix}") for _, entry, prefix in found) or "nowhere"
        raise CheckpointError(
            f"Expected the weights of one {kinds} in {str(source)!r}, found them {places}."
        )
    return found[0]


def _configs_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("model_type"), str):
            yield value
        else:
            for item in value.values():
                yield from _configs_in(item)


def _made(config: dict[str, Any]) -> PreTrainedModel:
    (name,) = config.get("architectures") or (None,)
    kind = getattr(transformers, name or "", None)
    if kind is None:
        raise CheckpointError(
            f"The config of type {config['model_type']!r} names the class {name!r}, which "
            f"transformers {transformers.__version__} doesn't have. Expected one of its classes as "
            "the only one of 'architectures'."
        )
    try:
        with torch.device("meta"):
            own = {name: value for name, value in config.items() if name != "generation_config"}
            made: PreTrainedModel = kind(
                transformers.CONFIG_MAPPING[config["model_type"]].from_dict(own)
            )
        if "generation_config" in config:
            made.generation_config = transformers.GenerationConfig.from_dict(
                config["generation_config"]
            )
    except Exception as error:  # whatever a config of strangers leads to
        raise CheckpointError(f"No {name} can be made of the config: {error!r:.300}.") from error
    return made


def _places(model: PreTrainedModel, state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The entries of a state that have all tensors of a model, of the same shapes, and their prefix
    there.
    """
    own = model.state_dict()
    names = _own_names(model)
    for entry, weights in state.items():
        if isinstance(weights, dict):
            for full in [
                each for each in weights if isinstance(each, str) and each.endswith(names[0])
            ]:
                prefix = full.removesuffix(names[0])
                found = [weights.get(prefix + name) for name in names]
                shapes = [getattr(leaf, "shape", None) for leaf in found]
                if shapes == [own[name].shape for name in names] and (
                    not prefix or prefix.endswith(".")
                ):
                    yield entry, prefix
