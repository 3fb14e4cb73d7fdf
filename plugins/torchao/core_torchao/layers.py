"""Linear layers that compute with quantized weights, or in 8-bit floats, as torchao does."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from core_torchao import library

if TYPE_CHECKING:
    from types import TracebackType


class QuantizedLayer:
    """The forward of a linear layer with its weight quantized; made again when the weight has
    changed.

    Args:
        layer: whose weight it is; that one stays as it is.
        config: torchao's.
    """

    def __init__(self, layer: nn.Linear, config: Any) -> None:
        self._layer, self._config = weakref.ref(layer), config
        self._state: Any = None
        self._weight: Any = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's output."""
        layer = _alive(self._layer)
        state = _state_of(layer.weight)
        if state != self._state or state is None:
            self._weight, self._state = _quantized(layer, self._config).weight, state
        return linear(inputs, self._weight, layer.bias)


class RoundedLayer:
    """The forward of a linear layer with its weight rounded as if quantized; gradients pass to the
    weight as it is.

    Args:
        layer: whose weight it is.
        config: torchao's, for quantization after training.
    """

    def __init__(self, layer: nn.Linear, config: Any) -> None:
        from torchao.quantization.qat import QATConfig

        self._layer = weakref.ref(layer)
        prepared: Any = _quantized(layer, QATConfig(config, step="prepare"))
        self._inputs, self._weight = (
            prepared.activation_fake_quantizer,
            prepared.weight_fake_quantizer,
        )

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's output."""
        layer = _alive(self._layer)
        inputs = inputs if self._inputs is None else self._inputs(inputs)
        return linear(inputs, self._weight(layer.weight), layer.bias)


class Float8Layer:
    """The forward of a linear layer whose products, of forward and backward, are of 8-bit floats.

    Args:
        layer: whose weight it is.
        products: a Float8Linear of torchao, which says how they are scaled and computed.
    """

    def __init__(self, layer: nn.Linear, products: Any) -> None:
        self._layer, self.products = weakref.ref(layer), products

    def __call__(self, inputs: Tensor) -> Tensor:
        """The layer's output; under autocast in its format, which torchao's own forward looks up on
        GPUs only.
        """
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args as multiply

        layer, device_type = _alive(self._layer), inputs.device.type
        if torch.is_autocast_enabled(device_type):
            inputs = inputs.to(torch.get_autocast_dtype(device_type))
        products = self.products
        output: Tensor = multiply.apply(
            inputs, layer.weight.t(), products.linear_mm_config, products.config
        )
        bias: Tensor | None = layer.bias
        return output if bias is None else output + bias.to(output.dtype)


class SwappedForwards:
    """A context that gives layers another forward. May be entered inside itself.

    Args:
        forwards: of each layer.
    """

    def __init__(self, forwards: weakref.WeakKeyDictionary[nn.Linear, Any]) -> None:
        self._forwards, self._depth = forwards, 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            for layer, forward in self._forwards.items():
                layer.__dict__["forward"] = forward

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            for layer in self._forwards:
                layer.__dict__.pop("forward", None)


def _quantized(layer: nn.Linear, config: Any) -> nn.Linear:
    """A copy of a layer, without bias, that torchao has quantized."""
    with torch.inference_mode(False), torch.no_grad():
        copied = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        copied.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        holder = nn.Sequential(copied)
        library.load().quantize_(holder, config)
        return cast("nn.Linear", holder[0])


def _state_of(weight: Tensor) -> Any:
    """Differs from one change of a weight to the next; None if that can't be known."""
    return (
        None
        if weight.is_inference()
        else (weight.data_ptr(), weight._version, weight.device, weight.dtype)
    )


def _alive(reference: weakref.ref[nn.Linear]) -> nn.Linear:
    layer = reference()
    assert layer is not None, "a module's context outlives it"
    return layer
