"""Models of transformers in any strategy: made, loaded in parts, and saved for `from_pretrained`."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, PreTrainedModel

from core import CheckpointError, ConfigurationError, Fabric, ModuleError
from core.checkpoint.building_blocks import chunks_to_fill, shape_of, together
from core.fabric import FabricModule
from core_transformers.conversions import Sources, like, ties, to_files, units
from core_transformers.weight_files import NewFolder, WeightFiles
from core_transformers.whole_tensors import WholeTensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn

    from core import Trainer

MAX_SHARD_BYTES = 5_000_000_000
_MOST_NAMED = 5


def from_config(host: Fabric | Trainer, config: Any, auto_class: Any, **options: Any) -> PreTrainedModel:
    """All ranks. A model without weights of its own, which the strategy builds where it trains it.

    On the meta device where the strategy shards, so that no rank ever has the whole; then `load_pretrained`, or the
    model's own first values.

    Args:
        host: the Fabric, or in `Module.configure_model` the Trainer.
        config: of the model, or the folder of one.
        auto_class: what makes it, such as `AutoModelForCausalLM`.
        options: of its `from_config`, such as `dtype` or `attn_implementation`.
    """
    if isinstance(config, (str, os.PathLike)):
        config = AutoConfig.from_pretrained(config)
    if isinstance(host, Fabric):
        host.init_tensor()  # sets up its ranks and devices, if this is its first use
    with host.strategy.init_context(empty=True):
        model: PreTrainedModel = auto_class.from_config(config, **options)
    return model


def load_pretrained(host: Fabric | Trainer, module: nn.Module, folder: str | Path, *, strict: bool = True) -> None:
    """All ranks. Fill a model that was set up from the files of `save_pretrained`; each rank reads its own parts.

    What the files have in another form, such as experts one by one, is read whole and converted, one tensor at a time.

    Args:
        host: the Fabric or Trainer that has set it up.
        module: what `fabric.setup` returned, or the Trainer's module: that model, or a module with one inside.
        folder: local.
        strict: the files have every tensor of the model, and no other.

    Raises:
        CheckpointError: a tensor is missing, or has another shape; names are listed. The model is then as it was.
    """
    with _agreeing(host):
        own, prefix, model = find_model(module)
    state = host.strategy.get_module_state_dict(own, layout="sharded")
    leaves = {name.removeprefix(prefix): leaf for name, leaf in state.items() if name.startswith(prefix)}
    with _agreeing(host):
        files = WeightFiles(folder)
        sources = Sources(like(model), leaves, list(files.files))
        _check(model, leaves, files, sources, strict)
    known: dict[Any, Any] = {}
    with _agreeing(host), torch.no_grad():
        for name, source in sources.renamed.items():
            for chunk in chunks_to_fill(leaves[name], known):
                chunk.tensor.copy_(files.read(source, chunk.box))
        for made in sources.convert(files.read):
            for name in made.keys() & leaves.keys():
                tensor = made[name]
                for chunk in chunks_to_fill(leaves[name], known):
                    chunk.tensor.copy_(tensor[chunk.box])
        sources.remember(model)
    host.strategy.load_module_state_dict(own, state)


def save_pretrained(
    host: Fabric | Trainer,
    module: nn.Module,
    folder: str | Path,
    *,
    beside: Sequence[Any] = (),
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """All ranks. Write a model for `from_pretrained`: a folder that is there whole or not at all.

    Rank 0 writes one tensor after the other, and holds no more than one that isn't its own.

    Args:
        host: the Fabric or Trainer that has set it up.
        module: as for `load_pretrained`.
        folder: local; nothing is there.
        beside: what else belongs there, by its own `save_pretrained`: a tokenizer, a processor.
        dtype: of floating-point tensors in the files; None keeps each one's.
        max_shard_bytes: of one file.

    Raises:
        ConfigurationError: something is at `folder`.
        OSError: it can't be written; nothing is at `folder` then.
    """
    with _agreeing(host):
        own, prefix, found = find_model(module)
        model = like(found)
    refuse_existing(host, folder)
    state = host.strategy.get_module_state_dict(own, layout="sharded")
    leaves = {name.removeprefix(prefix): leaf for name, leaf in state.items() if name.startswith(prefix)}
    for name in ties(model, leaves):
        del leaves[name]
    whole, in_files = WholeTensors(host.strategy, leaves), units(model, list(leaves))
    files: NewFolder | None = None
    error: Exception | None = None
    try:
        with _agreeing(host):
            if host.strategy.is_global_zero:
                files = NewFolder(Path(folder), described_files(model, leaves, in_files, dtype), max_shard_bytes)
        for unit in in_files:
            tensors = {name: whole.get(name) for name in unit}
            try:
                if files is not None and error is None:
                    for name, tensor in to_files(model, tensors).items():
                        files.write(name, _cast(tensor, dtype))
            except Exception as caught:  # the other ranks go on giving their parts
                error = caught
        with _agreeing(host):
            if error is not None:
                raise error
            if files is not None:
                others = [*filter(None, [getattr(found, "generation_config", None)]), *beside]
                add_config(files.scratch, model, leaves, others, dtype)
                files.finish()
    finally:
        if files is not None:
            files.remove()


def refuse_existing(host: Fabric | Trainer, folder: str | Path) -> None:
    """All ranks.

    Raises:
        ConfigurationError: something is at `folder`.
    """
    with _agreeing(host):
        if host.strategy.is_global_zero and Path(folder).exists():
            raise ConfigurationError(
                f"A model is to be saved in {str(folder)!r}, and something is there. Name a folder that doesn't exist."
            )


@contextmanager
def _agreeing(host: Fabric | Trainer) -> Iterator[None]:
    """All ranks. Raise on all what one raises within."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught

    def report() -> None:
        if error is not None:
            raise error

    together(host.strategy.session.collectives, report)


def find_model(module: nn.Module) -> tuple[nn.Module, str, PreTrainedModel]:
    """The user's own module, the prefix of the model's names in it, and the model.

    Raises:
        ModuleError: it has none, or several.
    """
    own = module.module if isinstance(module, FabricModule) else module
    found = [(name, each) for name, each in own.named_modules() if isinstance(each, PreTrainedModel)]
    outer = [
        pair
        for pair in found
        if not any(pair[0].startswith(f"{name}." if name else "") and pair[1] is not each for name, each in found)
    ]
    if len(outer) != 1:
        names = ", ".join(repr(name) for name, _ in outer) or "none"
        raise ModuleError(f"Expected one model of transformers in {type(own).__name__}, found {names}.")
    ((name, model),) = outer
    return own, f"{name}." if name else "", model


def _check(
    model: PreTrainedModel, leaves: Mapping[str, Any], files: WeightFiles, sources: Sources, strict: bool
) -> None:
    """Compare names and shapes, before anything is read.

    Raises:
        CheckpointError: they differ.
    """
    offered = {name: files.shape(source) for name, source in sources.renamed.items()}
    for made in sources.convert(lambda name: torch.empty(files.shape(name), device="meta")):
        offered |= {name: tuple(tensor.shape) for name, tensor in made.items()}
    problems = [
        f"{name!r} has the shape {offered[name]} in the files, and {shape_of(leaves[name])} in the model"
        for name in sorted(offered.keys() & leaves.keys())
        if offered[name] != shape_of(leaves[name])
    ]
    if strict:
        missing = sorted(leaves.keys() - offered.keys())
        problems += [f"{each!r} is not in the files" for each in _but(missing, model._keys_to_ignore_on_load_missing)]
        unknown = [*sources.unexpected, *sorted(offered.keys() - leaves.keys())]
        problems += [
            f"{each!r} is not in the model" for each in _but(unknown, model._keys_to_ignore_on_load_unexpected)
        ]
    if problems:
        more = f"; and {len(problems) - _MOST_NAMED} more" if len(problems) > _MOST_NAMED else ""
        raise CheckpointError(
            f"{str(files.folder)!r} doesn't fit {type(model).__name__}: {'; '.join(problems[:_MOST_NAMED])}{more}. "
            "Make the model from the config in that folder, or load what fits by strict=False."
        )


def _but(names: Sequence[str], patterns: Iterable[str] | None) -> list[str]:
    """The names that match no pattern."""
    return [name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())]


def described_files(
    model: PreTrainedModel, leaves: Mapping[str, Any], in_files: Sequence[Sequence[str]], dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The tensors of the files on the meta device."""
    found: dict[str, torch.Tensor] = {}
    for unit in in_files:
        empty = {name: torch.empty(shape_of(leaves[name]), dtype=leaves[name].dtype, device="meta") for name in unit}
        found |= {name: _cast(tensor, dtype) for name, tensor in to_files(model, empty).items()}
    return found


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def add_config(
    folder: Path,
    model: PreTrainedModel,
    leaves: Mapping[str, Any],
    beside: Sequence[Any],
    dtype: torch.dtype | None = None,
) -> None:
    """Rank 0. Write what isn't weights."""
    config = saved_config(model)
    config.dtype = dtype or next((leaf.dtype for leaf in leaves.values() if leaf.dtype.is_floating_point), config.dtype)
    for each in (config, *beside):
        each.save_pretrained(folder)


def saved_config(model: PreTrainedModel) -> Any:
    """The config of a model, with the name of its class as files have it."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.architectures = [type(model).__name__]
    return config


def config_of(module: nn.Module) -> dict[str, Any]:
    """The config of the model in a module, in plain types.

    A checkpoint that has it, under any name, says of itself to `core checkpoint convert` which model it is of.
    """
    found: dict[str, Any] = json.loads(saved_config(like(find_model(module)[2])).to_json_string())
    return found
