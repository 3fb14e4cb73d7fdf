"""Low-rank adapters around the layers that a plan names, as peft's LoRA puts them there: cut as
these are.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from core import ModuleError

if TYPE_CHECKING:
    from collections.abc import Mapping


def inside(module: nn.Module, planned: Mapping[str, Any]) -> dict[str, Any]:
    """A plan with the layers in adapters in the place of these.

    The second layer of an adapter beside a layer that is cut by columns gives the same columns, and
    the first one beside a layer that is cut by rows is given the same rows.

    Args:
        module: the user's.
        planned: words or styles by the names of modules in it.

    Raises:
        ModuleError: an adapter has another form.
    """
    found: dict[str, Any] = {}
    for name, word in planned.items():
        part: Any = module.get_submodule(name)
        if not isinstance(getattr(part, "base_layer", None), nn.Module):
            found[name] = word
            continue
        first, second = getattr(part, "lora_A", None), getattr(part, "lora_B", None)
        if (
            not isinstance(first, nn.ModuleDict)
            or not isinstance(second, nn.ModuleDict)
            or _has_more(part)
        ):
            raise ModuleError(
                f"{name!r} is to be cut, and has an adapter ({type(part).__name__}) that isn't a "
                "product of two layers, lora_A and lora_B. Leave it out of the plan, or use LoRA."
            )
        side, layers = "lora_A", first
        if isinstance(word, ColwiseParallel) or str(word).startswith("colwise"):
            side, layers = "lora_B", second
        found |= {f"{name}.base_layer": word, **{f"{name}.{side}.{key}": word for key in layers}}
    return found


def around(name: str) -> str:
    """The name of the layer that a plan names, of a name in what `inside` returns."""
    return name.removesuffix(".base_layer")


def is_beside(name: str) -> bool:
    """True if a name in what `inside` returns is that of an adapter's layer."""
    return name.rpartition(".")[0].endswith((".lora_A", ".lora_B"))


def _has_more(part: Any) -> bool:
    """True if an adapter scales by norms of whole weights, as DoRA does, or has other tensors
    beside its two layers.
    """
    known = part.base_layer, part.lora_A, part.lora_B
    others = [child for child in part.children() if child not in known]
    parameters = [one for child in others for one in child.parameters()]
    return bool(parameters or part._parameters)
