"""A model of transformers within a module that a strategy has set up, and its tensors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from core import ModuleError
from core.checkpoint.building_blocks import shape_of, together
from core.fabric import FabricModule
from core_transformers.adapters import find_adapted
from core_transformers.conversions import like

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from core import Fabric, Trainer


class ModelState:
    """The tensors of a model, by the names that its class gives them.

    Attributes:
        own: the user's module, with the model in it.
        found: the model.
        model: one like it on the meta device, without adapters.
        prefix: of the model's names in `own`; with adapters, of the names of peft's model.
        adapted: the adapters around it; None if there are none.
        state: of `own`, each rank its part.
        leaves: of the model, by name: several if adapters train a copy.
        of_adapter: what adapters add, by the names in peft's model.
    """

    def __init__(self, host: Fabric | Trainer, module: nn.Module) -> None:
        """All ranks.

        Raises:
            ModuleError: it has no model or several, or one with other tensors than its class has.
        """
        with agreeing(host):
            self.own, prefix, self.found = find_model(module)
            self.model = like(self.found)
            outer = find_adapted(self.own)
        self.adapted = outer[1] if outer else None
        self.prefix = prefix = outer[0] if outer else prefix
        self.state = host.strategy.get_module_state_dict(self.own, layout="sharded")
        leaves = {
            name.removeprefix(prefix): leaf
            for name, leaf in self.state.items()
            if name.startswith(prefix)
        }
        names = self.adapted.of_base(leaves) if self.adapted else {name: [name] for name in leaves}
        expected = self.model.state_dict()
        with agreeing(host):
            missing = [name for name in expected if name not in names]
            others = [] if self.adapted else [name for name in names if name not in expected]
            if missing or others:
                raise ModuleError(
                    f"{type(self.model).__name__} with its config has other tensors than the model "
                    f"in {type(self.own).__name__}, which {'lacks' if missing else 'has'} "
                    f"{(missing or others)[0]!r}. Only models of transformers as their config "
                    "describes them, and adapters of peft, are taken."
                )
        self.leaves = {name: [leaves[each] for each in names[name]] for name in expected}
        bases = {
            each for name in expected for each in names[name] if ".modules_to_save." not in each
        }
        self.of_adapter = (
            {name: leaf for name, leaf in leaves.items() if name not in bases}
            if self.adapted
            else {}
        )
        self._all = leaves

    def in_adapter_files(self) -> dict[str, Any]:
        """The tensors of the adapter, by their names in peft's files."""
        return {file_name: self.state[name] for file_name, name in self.adapter_names().items()}

    def adapter_names(self) -> dict[str, str]:
        """The names in `own` of the adapter's tensors, by those in peft's files."""
        assert self.adapted is not None
        empty = {
            name: torch.empty(shape_of(leaf), dtype=leaf.dtype, device="meta")
            for name, leaf in self._all.items()
        }
        return {
            file_name: self.prefix + name
            for file_name, name in self.adapted.in_files(empty).items()
        }


@contextmanager
def agreeing(host: Fabric | Trainer) -> Iterator[None]:
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
    found = [
        (name, each) for name, each in own.named_modules() if isinstance(each, PreTrainedModel)
    ]
    outer = [
        pair
        for pair in found
        if not any(
            pair[0].startswith(f"{name}." if name else "") and pair[1] is not each
            for name, each in found
        )
    ]
    if len(outer) != 1:
        names = ", ".join(repr(name) for name, _ in outer) or "none"
        raise ModuleError(
            f"Expected one model of transformers in {type(own).__name__}, found {names}."
        )
    ((name, model),) = outer
    return own, f"{name}." if name else "", model
