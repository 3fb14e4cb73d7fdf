"""Precisions that quantize the weights of linear layers while a step runs."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core import Capability, ConfigurationError, Precision, Strategy
from core_torchao import library
from core_torchao.layers import QuantizedLayer, RoundedLayer, SwappedForwards

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_WIDTH = 64
"""Of the layer by which products are looked at."""
_TAKES_WEIGHTS = Capability.SHARDED_STATE | Capability.COMPILED_STEP


class TorchAOPrecision(Precision):
    """Evaluates and predicts with the weights of linear layers quantized by torchao. It doesn't
    train.

    The module's own weights stay what they are, beside the quantized ones: what is saved and loaded
    is in full precision, as without this. Layers whose forward isn't called, as in
    MultiheadAttention, aren't quantized.

    Args:
        config: one of torchao's, such as `torchao.quantization.Int8WeightOnlyConfig()`.
        name: for messages.
        filter_fn: which linear layers are quantized, by the layer and its name; None is all of
            them.
    """

    trains = False
    _forward: Callable[[nn.Linear, Any], Callable[[Tensor], Tensor]] = QuantizedLayer

    def __init__(
        self,
        config: Any,
        *,
        name: str | None = None,
        filter_fn: Callable[[nn.Linear, str], bool] | None = None,
    ) -> None:
        library.load()
        from torchao.core.config import AOBaseConfig

        if not isinstance(config, AOBaseConfig):
            raise ConfigurationError(
                f"{type(self).__name__}({config!r}): expected a configuration of torchao's, such "
                "as torchao.quantization.Int8WeightOnlyConfig()."
            )
        self.name = name or type(config).__name__
        self._config, self._filter = config, filter_fn
        self._begin()

    def _begin(self) -> None:
        self._layers: weakref.WeakKeyDictionary[nn.Linear, Any] = weakref.WeakKeyDictionary()
        self._forwards = SwappedForwards(self._layers)

    def __getstate__(self) -> dict[str, Any]:
        # a process that is made has layers of its own
        return {**self.__dict__, "_layers": None, "_forwards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def connect(self, strategy: Any) -> None:
        """Refuse strategies that have the weights in a form of their own.

        Raises:
            ConfigurationError: with those that can; or on a CPU that gets products of 8 bits wrong.
        """
        if isinstance(strategy, Strategy) and strategy.capabilities & _TAKES_WEIGHTS:
            raise ConfigurationError(
                f"precision={self.name!r} quantizes weights that are whole, and "
                f"{type(strategy).__name__} keeps or computes them in a form of its own. Use a "
                "single device, or strategy='ddp'."
            )
        if isinstance(strategy, Strategy) and strategy.root_device.type == "cpu":
            self._check_products(strategy.root_device)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Quantize the linear layers of a module once, so that what can't be is known; nothing is
        changed.

        Raises:
            ConfigurationError: torchao can't quantize a layer so, or there is none; or this
                processor gets its products wrong.
        """
        found = {name: layer for name, layer in module.named_modules() if self._takes(name, layer)}
        if not found:
            raise ConfigurationError(
                f"precision={self.name!r} quantizes linear layers, and {type(module).__name__} has "
                "none"
                + (" that filter_fn takes." if self._filter else ".")
                + " Use precision='32-true', or 'bf16-true'."
            )
        for name, layer in found.items():
            self._layers[layer] = self._checked(name, layer)
        # one that processes made later have, too
        for device in {layer.weight.device for layer in found.values()}:
            self._check_products(device)
        return module

    def forward_context(self, device_type: str) -> SwappedForwards:
        """A context in which the layers compute with quantized weights; the same for all stages."""
        return self._forwards

    def _takes(self, name: str, layer: nn.Module) -> bool:
        return isinstance(layer, nn.Linear) and (self._filter is None or self._filter(layer, name))

    def _checked(self, name: str, layer: Any) -> Any:
        try:
            forward = type(self)._forward(layer, self._config)
            forward(layer.weight.new_zeros(1, layer.in_features))
        except Exception as error:
            reason = str(error).splitlines()[0].rstrip(". ")
            raise ConfigurationError(
                f"precision={self.name!r}: torchao can't quantize the layer {name or 'itself'!r} "
                f"of shape {tuple(layer.weight.shape)} on {layer.weight.device.type!r}: {reason}. "
                f"Leave it out by {type(self).__name__}(config, filter_fn=...), or use another "
                "configuration."
            ) from error
        return forward

    def _check_products(self, device: torch.device) -> None:
        """Refuse a device whose products of whole numbers don't fit: processors without VNNI cut
        them off in silence.

        Raises:
            ConfigurationError: a product of the largest values isn't near the exact one.
        """
        layer = nn.Linear(_WIDTH, _WIDTH, bias=False, device=device)
        with torch.no_grad():
            layer.weight.fill_(1.0)  # quantized, each is the largest value
            try:
                product = type(self)._forward(layer, self._config)(layer.weight)
            except Exception:  # of a width that isn't the user's
                return
        value = float(product.float().abs().min())
        if not _WIDTH / 2 < value < _WIDTH * 2:
            raise ConfigurationError(
                f"precision={self.name!r} computes wrong numbers on this {device.type!r}: a "
                f"product that is {_WIDTH} comes out as {value:.3g}, since sums of 8-bit products "
                "don't fit where it adds them up. A CPU with AVX512-VNNI or AVX-VNNI adds them "
                "right; elsewhere use precision='int8-weight-only'."
            )


class QATPrecision(TorchAOPrecision):
    """Trains with weights that are rounded as torchao will quantize them, so that the module learns
    to live with it.

    Quantization-aware training: gradients pass the rounding as if it weren't there. The weights
    that the optimizer changes, and checkpoints hold, stay in full precision.

    Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference,
    https://arxiv.org/abs/1712.05877
    """

    trains = True
    _forward = RoundedLayer
