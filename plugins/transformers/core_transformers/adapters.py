"""Adapters of peft around a model of transformers: their names, their first values, and their
files.
"""

from __future__ import annotations

import json
import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn
    from transformers import PreTrainedModel

ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_WITHIN = "base_model.model."
_COPY = re.compile(r"\.modules_to_save\.[^.]+\.")


class Adapted:
    """A model of peft around one of transformers.

    Attributes:
        model: peft's.
        config: of its adapter.
    """

    def __init__(self, model: Any) -> None:
        """Refuse what has no names of its own in files.

        Raises:
            ModuleError: it has several adapters, or prompts in their place.
        """
        if len(model.peft_config) != 1:
            raise ModuleError(
                f"Expected one adapter in {type(model).__name__}, found "
                f"{', '.join(map(repr, model.peft_config))}. Delete the others by delete_adapter "
                "before setup."
            )
        self.model = model
        ((self._adapter, self.config),) = model.peft_config.items()
        if self.config.is_prompt_learning:
            raise ModuleError(
                f"Adapters of the type {self.config.peft_type.value} compute what is saved of "
                "them, and are not taken. Use a type that adds tensors to layers, such as LoRA."
            )

    def of_base(self, names: Mapping[str, Any]) -> dict[str, list[str]]:
        """The names of the model without adapters, and for each those in peft's: a module may be
        trained as a copy.
        """
        found: dict[str, list[str]] = {}
        for name in names:
            own = (
                name.removeprefix(_WITHIN)
                .replace(".base_layer.", ".")
                .replace(".original_module.", ".")
            )
            found.setdefault(_COPY.sub(".", own), []).append(name)
        return found

    def in_files(self, leaves: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """The names in peft's model, by those in the files of its adapter.

        Args:
            leaves: all tensors of peft's model by name, on the meta device.

        Raises:
            ModuleError: peft would save something else than tensors of the model.
        """
        from peft import get_peft_model_state_dict

        saved = get_peft_model_state_dict(
            self.model, dict(leaves), self._adapter, save_embedding_layers=False
        )
        names = {id(leaf): name for name, leaf in leaves.items()}
        if others := [name for name, leaf in saved.items() if id(leaf) not in names]:
            raise ModuleError(
                f"peft saves {others[0]!r} in another form than the model has it, which isn't "
                "taken."
            )
        return {name: names[id(leaf)] for name, leaf in saved.items()}

    def differences(self, folder: Path) -> list[str]:
        """The settings in a folder of adapters with which its weights would mean something else
        here.
        """
        theirs = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        own = json.loads(json.dumps(self.config.to_dict(), default=str))
        return [
            f"{name!r} is {theirs[name]!r} in {ADAPTER_CONFIG}, and {own[name]!r} in the model"
            for name in ("peft_type", "lora_alpha", "alpha_pattern", "use_rslora", "use_dora")
            if name in theirs and name in own and theirs[name] != own[name]
        ]

    def first_values(self, base: PreTrainedModel, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Values with which new adapters begin, the same ones for a seed under any strategy.

        Args:
            base: the model without adapters, on the meta device. It gets some.
            seed: of random ones.

        Raises:
            ModuleError: they depend on the model's weights, or aren't known.
        """
        from peft import get_peft_model
        from peft.tuners.lora import LoraLayer

        begins = getattr(self.config, "init_lora_weights", None)
        if begins not in (True, False, "gaussian") or getattr(self.config, "use_dora", False):
            kind = self.config.peft_type.value
            raise ModuleError(
                f"The first values of these adapters ({kind}, init_lora_weights={begins!r}) aren't "
                "known without the whole model. Save them once on one device by peft's "
                "save_pretrained, and name that folder: load_pretrained(..., adapters=folder)."
            )
        with torch.random.fork_rng(devices=[]):
            twin = get_peft_model(base, deepcopy(self.config), adapter_name=self._adapter)
            torch.manual_seed(seed)
            for name, layer in twin.named_modules():
                if isinstance(layer, LoraLayer):
                    yield from (
                        (f"{name}.{own}", tensor) for own, tensor in self._reset(layer, begins)
                    )

    def _reset(self, layer: Any, begins: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for part in layer.adapter_layer_names:
            held = getattr(layer, part)
            if isinstance(held, torch.nn.ParameterDict):
                if self._adapter in held:
                    held[self._adapter] = torch.nn.Parameter(torch.randn(held[self._adapter].shape))
            elif self._adapter in held:
                held[self._adapter].to_empty(device="cpu")
                for module in held[self._adapter].modules():
                    if hasattr(module, "reset_parameters"):
                        module.reset_parameters()
        layer.reset_lora_parameters(self._adapter, begins)
        for part in layer.adapter_layer_names:
            for own, tensor in getattr(layer, part).state_dict(prefix=f"{part}.").items():
                if not tensor.is_meta:
                    yield own, tensor
            getattr(layer, part).to("meta")

    def save_config(self, folder: Path, base: PreTrainedModel) -> None:
        """Rank 0. Write what isn't weights, as peft does."""
        config = deepcopy(self.config)
        config.inference_mode = True
        config.base_model_name_or_path = config.base_model_name_or_path or base.name_or_path or None
        kind = {"base_model_class": type(base).__name__, "parent_library": type(base).__module__}
        config.save_pretrained(folder, auto_mapping_dict=None if config.task_type else kind)


def is_adapter_folder(folder: str | Path) -> bool:
    """True if a folder has adapters alone."""
    names = (ADAPTER_FILE, ADAPTER_CONFIG)
    return (
        all((Path(folder) / name).is_file() for name in names)
        and not (Path(folder) / "config.json").is_file()
    )


def find_adapted(own: nn.Module) -> tuple[str, Adapted] | None:
    """The prefix of the names in peft's model in a module, and that model; None if there is
    none.
    """
    peft = sys.modules.get("peft")
    kinds = peft.PeftModel if peft is not None else ()
    found = next(
        ((name, each) for name, each in own.named_modules() if isinstance(each, kinds)), None
    )
    if not found:
        return None
    name, model = found
    return f"{name}." if name else "", Adapted(model)
