"""The tensors of a model of transformers and those of its files: other names, and experts that are
one tensor.

transformers describes the way from files to a model by conversions; here they are followed for one
tensor at a time.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from transformers import conversion_mapping
from transformers import core_model_loading as loading

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from transformers import PreTrainedModel


def like(model: PreTrainedModel) -> PreTrainedModel:
    """A model of the same class and configs on the meta device, whose conversions transformers
    finds by its class.

    A strategy may have made the model one of a class of its own.
    """
    kind = next(each for each in type(model).__mro__ if "forward" in vars(each))
    with torch.device("meta"):
        made: PreTrainedModel = kind(model.config)
    if (kept := getattr(model, "_weight_conversions", None)) is not None:
        made._weight_conversions = kept
    if made.can_generate():
        made.generation_config = model.generation_config
    return made


class Sources:
    """Where each tensor of a model comes from, for the names in its files.

    Attributes:
        renamed: the name in the files, by the name in the model, for tensors that are there as they
            are.
        unexpected: names in the files of which the model has nothing.
    """

    def __init__(
        self, model: PreTrainedModel, shapes: Mapping[str, Any], file_names: Sequence[str]
    ) -> None:
        """Follow the conversions by name; no tensor is read.

        Args:
            model: of transformers.
            shapes: its tensors' names, as keys.
            file_names: in the files.
        """
        self.renamed: dict[str, str] = {}
        self.unexpected: list[str] = []
        self._model = model
        self._converted: dict[str, tuple[Any, list[tuple[str, str]]]] = {}
        # not those of the last load
        self._transforms = conversion_mapping.get_model_conversion_mapping(model)
        renamings = [each for each in self._transforms if isinstance(each, loading.WeightRenaming)]
        converters = [
            each for each in self._transforms if isinstance(each, loading.WeightConverter)
        ]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        prefix = model.base_model_prefix
        for name in sorted(file_names, key=loading.dot_natural_key):
            target, pattern = loading.rename_source_key(
                name, renamings, converters, prefix, dict(shapes)
            )
            if target not in shapes and name in shapes:
                target, pattern = name, None
            if target not in shapes:
                self.unexpected.append(name)
            elif pattern is None:
                self.renamed[target] = name
            else:
                self._converted.setdefault(target, (by_pattern[pattern], []))[1].append(
                    (name, pattern)
                )

        for name, source in ties(model, shapes).items():
            if name not in self.renamed and source in self.renamed:
                self.renamed[name] = self.renamed[source]

    def convert(self, read: Callable[[str], torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
        """The other tensors of the model, whole, those that are made together at a time.

        Args:
            read: gives a tensor of the files.
        """
        for target, (converter, found) in self._converted.items():
            own = deepcopy(converter)
            for name, pattern in found:
                own.add_tensor(target, name, pattern, read(name))
            made = own.convert(target, model=self._model, config=self._model.config)
            yield {name: each[0] if isinstance(each, list) else each for name, each in made.items()}

    def remember(self, model: PreTrainedModel) -> None:
        """Make a model be saved under the names of these files, as after `from_pretrained`."""
        model._weight_conversions = [each for each in self._transforms if each.was_used()]


def units(model: PreTrainedModel, names: Sequence[str]) -> list[list[str]]:
    """The model's names, those together that the files have as one tensor or more."""
    transforms = getattr(model, "_weight_conversions", None)
    if transforms is None:
        transforms = conversion_mapping.get_model_conversion_mapping(model, add_legacy=False)
    back: list[Any] = [
        each.reverse_transform()
        for each in transforms[::-1]
        if isinstance(each, loading.WeightConverter)
    ]
    found: dict[str, list[str]] = {}
    for name in sorted(names, key=loading.dot_natural_key):
        target, pattern = loading.apply_converters(name, back)
        found.setdefault(f"converted {target}" if pattern is not None else name, []).append(name)
    return list(found.values())


def to_files(model: PreTrainedModel, unit: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A unit's tensors as the files have them; on the meta device too."""
    found: dict[str, torch.Tensor] = loading.revert_weight_conversion(model, dict(unit))
    return found


def ties(model: PreTrainedModel, names: Collection[str]) -> dict[str, str]:
    """Those names that stand for a tensor of another name, which the files have alone, and that
    name.
    """
    found: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: source for name, source in found.items() if name in names and source in names}
