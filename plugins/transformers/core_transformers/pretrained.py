"""Models of transformers in any strategy: made, loaded in parts, and saved for
`from_pretrained`.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from core import CheckpointError, ConfigurationError, Fabric, ModuleError
from core.checkpoint.building_blocks import chunks_to_fill, shape_of
from core.fabric import WholeTensors
from core.precision import kept_in_float32
from core_transformers.adapters import ADAPTER_FILE, is_adapter_folder
from core_transformers.conversions import Sources, like, ties, to_files, units
from core_transformers.model_state import ModelState, agreeing, find_model
from core_transformers.packing import DocumentsApart
from core_transformers.weight_files import ONE_FILE, NewFolder, WeightFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from core import Trainer

MAX_SHARD_BYTES = 5_000_000_000
GENERATION_CONFIG = "generation_config.json"
_MOST_NAMED = 5


def from_config(
    host: Fabric | Trainer, config: Any, auto_class: Any, **options: Any
) -> PreTrainedModel:
    """All ranks. A model without weights of its own, which the strategy builds where it trains it.

    On the meta device where the strategy shards, so that no rank ever has the whole; then
    `load_pretrained`, or the model's own first values. Where an engine cuts each parameter as it is
    made, these are its layers'. It trains without a cache, as the Trainer of transformers has it,
    so that documents packed in a row don't see each other.

    Args:
        host: the Fabric, or in `Module.configure_model` the Trainer.
        config: of the model, or the folder of one.
        auto_class: what makes it, such as `AutoModelForCausalLM`.
        options: of its `from_config`, such as `attn_implementation`. Without `dtype` it is the
            precision's, whatever the config says: float32 under "bf16-mixed".
    """
    folder = config if isinstance(config, (str, os.PathLike)) else None
    if folder is not None:
        config = AutoConfig.from_pretrained(folder)
    if isinstance(host, Fabric):
        host.init_tensor()  # sets up its ranks and devices, if this is its first use
    with host.strategy.init_context(empty=True):
        options.setdefault("dtype", torch.get_default_dtype())
        is_whole = nn.Linear(2, 2).weight.numel() == 4
        with nullcontext() if is_whole else _layers_values():
            model: PreTrainedModel = auto_class.from_config(config, **options)
    DocumentsApart(model)
    if folder is not None:
        take_generation_config(model, folder)
    return model


def take_generation_config(model: PreTrainedModel, folder: str | os.PathLike[str]) -> None:
    """Give a model the settings of a folder by which it generates, such as its ends and sampling,
    if there are some.
    """
    if model.can_generate() and (Path(folder) / GENERATION_CONFIG).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)


@contextmanager
def _layers_values() -> Iterator[None]:
    """A context in which models don't draw values of their own, which take a parameter to be
    whole.
    """
    own = PreTrainedModel.initialize_weights
    PreTrainedModel.initialize_weights = lambda model: None
    try:
        yield
    finally:
        PreTrainedModel.initialize_weights = own


def load_pretrained(
    host: Fabric | Trainer,
    module: nn.Module,
    folder: str | Path,
    *,
    strict: bool = True,
    adapters: str | Path | None = None,
) -> None:
    """All ranks. Fill a model that was set up from the files of `save_pretrained`; each rank reads
    its own parts.

    What the files have in another form, such as experts one by one, is read whole and converted,
    one tensor at a time. A model around which peft has put adapters gets the weights without them,
    and its adapters get first values, the same ones for a seed under any strategy. A folder of
    adapters fills these alone.

    Args:
        host: the Fabric or Trainer that has set it up.
        module: what `fabric.setup` returned, or the Trainer's module: that model, or a module with
            one inside.
        folder: local; of a model, or of adapters.
        strict: the files have every tensor of the model, and no other.
        adapters: the folder from which adapters get their values instead.

    Raises:
        CheckpointError: a tensor is missing, or has another shape; names are listed. The model is
            then as it was.
        ModuleError: there is no such model, or its adapters' first values depend on the weights.
    """
    model = ModelState(host, module)
    with agreeing(host):
        if is_adapter_folder(folder):
            loads = [_of_adapters(model, folder, strict)]
        else:
            loads = [_of_model(model, folder, strict)]
            if adapters is not None:
                loads.append(_of_adapters(model, adapters, strict))
            elif model.adapted is not None:
                loads.append(_of_first_values(host, model))
    known: dict[Any, Any] = {}
    with agreeing(host), torch.no_grad():
        for load in loads:
            for leaf, read in load:
                for chunk in chunks_to_fill(leaf, known):
                    chunk.tensor.copy_(read(chunk.box))
    host.strategy.load_module_state_dict(model.own, model.state)
    take_generation_config(model.found, folder)


_Load: TypeAlias = "Iterable[tuple[Any, Callable[[tuple[slice, ...]], torch.Tensor]]]"
"""Leaves, and what gives a box of each."""


def _of_model(model: ModelState, folder: str | Path, strict: bool) -> _Load:
    files = WeightFiles(folder)
    sources = Sources(model.model, model.leaves, list(files.files))
    _check(model.model, model.leaves, files, sources, strict)

    def load() -> _Load:
        for name, source in sources.renamed.items():
            for leaf in model.leaves[name]:
                yield leaf, partial(files.read, source)
        for made in sources.convert(files.read):
            for name in made.keys() & model.leaves.keys():
                for leaf in model.leaves[name]:
                    yield leaf, made[name].__getitem__
        sources.remember(model.found)

    return load()


def _of_adapters(model: ModelState, folder: str | Path, strict: bool) -> _Load:
    if model.adapted is None:
        raise ModuleError(
            f"{str(folder)!r} has adapters of peft, and {type(model.found).__name__} none. Make "
            "them before setup: get_peft_model(model, PeftConfig.from_pretrained(folder))."
        )
    files, leaves = WeightFiles(folder, ADAPTER_FILE), model.in_adapter_files()
    offered = {name: files.shape(name) for name in files.files}
    problems = [*model.adapted.differences(Path(folder)), *_differing(offered, leaves)]
    if strict:
        problems += [
            f"{name!r} is not in the files" for name in sorted(leaves.keys() - offered.keys())
        ]
        problems += [
            f"{name!r} is not in the model" for name in sorted(offered.keys() - leaves.keys())
        ]
    _refuse(files, model.adapted.model, problems)
    return ((leaves[name], partial(files.read, name)) for name in leaves.keys() & offered.keys())


def _of_first_values(host: Fabric | Trainer, model: ModelState) -> _Load:
    assert model.adapted is not None
    seed = host.strategy.session.collectives.broadcast_object(torch.initial_seed())
    values = dict(model.adapted.first_values(like(model.found), seed))
    if others := [
        name for name in model.of_adapter if name not in values and ".modules_to_save." not in name
    ]:
        raise ModuleError(
            f"The first value of {others[0]!r} isn't known without the whole model. Save the "
            "adapters once on one device by peft's save_pretrained, and name that folder: "
            "load_pretrained(..., adapters=folder)."
        )
    return ((model.of_adapter[name], value.__getitem__) for name, value in values.items())


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

    Of a model around which peft has put adapters, these alone, as peft's own `save_pretrained`.
    Rank 0 writes one tensor after the other, and holds no more than one that isn't its own.

    Args:
        host: the Fabric or Trainer that has set it up.
        module: as for `load_pretrained`.
        folder: local; nothing is there.
        beside: what else belongs there, by its own `save_pretrained`: a tokenizer, a processor.
        dtype: of floating-point tensors in the files, but for those kept in float32; None keeps
            each one's.
        max_shard_bytes: of one file.

    Raises:
        ConfigurationError: something is at `folder`.
        ModuleError: there is no such model.
        OSError: it can't be written; nothing is at `folder` then.
    """
    refuse_existing(host, folder)
    opened = ModelState(host, module)
    with agreeing(host):
        names, in_files, convert = to_write(opened, dtype)
        leaves = {name: opened.state[own] for name, own in names.items()}
    whole = WholeTensors(host.strategy, leaves)
    files: NewFolder | None = None
    error: Exception | None = None
    try:
        with agreeing(host):
            if host.strategy.is_global_zero:
                described = described_files(convert, leaves, in_files)
                files = NewFolder(
                    Path(folder),
                    described,
                    max_shard_bytes,
                    ADAPTER_FILE if opened.adapted else ONE_FILE,
                )
        for unit in in_files:
            tensors = {name: whole.get(name) for name in unit}
            try:
                if files is not None and error is None:
                    for name, tensor in convert(tensors).items():
                        files.write(name, tensor)
                        del tensor
            except Exception as caught:  # the other ranks go on giving their parts
                error = caught
            del tensors  # before the next ones are made
        with agreeing(host):
            if error is not None:
                raise error
            if files is not None:
                _add_others(files.scratch, opened, leaves, beside, dtype)
                files.finish()
    finally:
        if files is not None:
            files.remove()


def to_write(
    opened: ModelState, dtype: torch.dtype | None
) -> tuple[dict[str, str], list[list[str]], Convert]:
    """Names of what is saved, each with that in the user's module; the units; what makes the files'
    tensors of one.

    Args:
        opened: the model.
        dtype: of floating-point tensors in the files, but for those that the model keeps in
            float32; None keeps all.
    """
    kept = kept_in_float32(opened.own, dtype)
    convert: Convert = dict
    if opened.adapted is not None:
        names = opened.adapter_names()
        in_units = [[name] for name in names]
    else:
        tied = ties(opened.model, opened.leaves)
        names = {name: opened.prefix + name for name in opened.leaves if name not in tied}
        in_units, convert = units(opened.model, list(names)), partial(to_files, opened.model)

    def cast_and_convert(unit: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return convert(
            {name: one if names[name] in kept else cast(one, dtype) for name, one in unit.items()}
        )

    return names, in_units, cast_and_convert


def _add_others(
    folder: Path,
    opened: ModelState,
    leaves: Mapping[str, Any],
    beside: Sequence[Any],
    dtype: torch.dtype | None,
) -> None:
    """Rank 0. Write what isn't weights."""
    if opened.adapted is not None:
        opened.adapted.save_config(folder, opened.found)
    else:
        add_config(folder, opened.model, leaves, dtype)
    for each in beside:
        each.save_pretrained(folder)


def refuse_existing(host: Fabric | Trainer, folder: str | Path) -> None:
    """All ranks.

    Raises:
        ConfigurationError: something is at `folder`.
    """
    with agreeing(host):
        if host.strategy.is_global_zero and Path(folder).exists():
            raise ConfigurationError(
                f"A model is to be saved in {str(folder)!r}, and something is there. Name a folder "
                "that doesn't exist."
            )


def _check(
    model: PreTrainedModel,
    leaves: Mapping[str, Sequence[Any]],
    files: WeightFiles,
    sources: Sources,
    strict: bool,
) -> None:
    """Compare names and shapes, before anything is read.

    Raises:
        CheckpointError: they differ.
    """
    offered = {name: files.shape(source) for name, source in sources.renamed.items()}
    for made in sources.convert(lambda name: torch.empty(files.shape(name), device="meta")):
        offered |= {name: tuple(tensor.shape) for name, tensor in made.items()}
    problems = _differing(offered, {name: found[0] for name, found in leaves.items()})
    if strict:
        missing = sorted(leaves.keys() - offered.keys())
        problems += [
            f"{each!r} is not in the files"
            for each in _but(missing, model._keys_to_ignore_on_load_missing)
        ]
        unknown = [*sources.unexpected, *sorted(offered.keys() - leaves.keys())]
        problems += [
            f"{each!r} is not in the model"
            for each in _but(unknown, model._keys_to_ignore_on_load_unexpected)
        ]
    _refuse(files, model, problems)


def _differing(offered: Mapping[str, tuple[int, ...]], leaves: Mapping[str, Any]) -> list[str]:
    return [
        f"{name!r} has the shape {offered[name]} in the files, and {shape_of(leaves[name])} in the "
        "model"
        for name in sorted(offered.keys() & leaves.keys())
        if offered[name] != shape_of(leaves[name])
    ]


def _refuse(files: WeightFiles, model: nn.Module, problems: Sequence[str]) -> None:
    if problems:
        more = f"; and {len(problems) - _MOST_NAMED} more" if len(problems) > _MOST_NAMED else ""
        raise CheckpointError(
            f"{str(files.folder)!r} doesn't fit {type(model).__name__}: "
            f"{'; '.join(problems[:_MOST_NAMED])}{more}. Make the model from the config in that "
            "folder, or load what fits by strict=False."
        )


def _but(names: Sequence[str], patterns: Iterable[str] | None) -> list[str]:
    """The names that match no pattern."""
    return [
        name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())
    ]


Convert: TypeAlias = "Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]"


def described_files(
    convert: Convert, leaves: Mapping[str, Any], in_files: Sequence[Sequence[str]]
) -> dict[str, torch.Tensor]:
    """The tensors of the files on the meta device.

    Args:
        convert: makes those of a unit.
        leaves: by name.
        in_files: the names of each unit.
    """
    found: dict[str, torch.Tensor] = {}
    for unit in in_files:
        empty = {
            name: torch.empty(shape_of(leaves[name]), dtype=leaves[name].dtype, device="meta")
            for name in unit
        }
        found |= convert(empty)
    return found


def cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A floating-point tensor in another dtype, others as they are; None keeps it."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def add_config(
    folder: Path,
    model: PreTrainedModel,
    leaves: Mapping[str, Any],
    dtype: torch.dtype | None = None,
) -> None:
    """Rank 0. Write a model's config, with the dtype in which its tensors are saved, and how it
    generates.
    """
    config = saved_config(model)
    config.dtype = dtype or next(
        (leaf.dtype for leaf in leaves.values() if leaf.dtype.is_floating_point), config.dtype
    )
    config.save_pretrained(folder)
    if model.can_generate():
        # which refuses nothing that it has read
        model.generation_config.to_json_file(folder / GENERATION_CONFIG)


def saved_config(model: PreTrainedModel) -> Any:
    """The config of a model, with the name of its class as files have it."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.architectures = [type(model).__name__]
    return config


def config_of(module: nn.Module) -> dict[str, Any]:
    """The config of the model in a module, in plain types.

    A checkpoint that has it, under any name, says of itself to `core checkpoint convert` which
    model it is of.
    """
    model = like(find_model(module)[2])
    found: dict[str, Any] = json.loads(saved_config(model).to_json_string())
    if model.can_generate():
        found["generation_config"] = json.loads(model.generation_config.to_json_string())
    return found
