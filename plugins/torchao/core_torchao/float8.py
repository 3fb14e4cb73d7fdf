"""The precisions that train with matrix products of 8-bit floats.

Micikevicius et al., "FP8 Formats for Deep Learning", https://arxiv.org/abs/2209.05433.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from core import Capability, ConfigurationError, Strategy
from core.precision import MixedPrecision
from core_torchao import library
from core_torchao.layers import Float8Layer, SwappedForwards

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

_log = logging.getLogger(__name__)
_MULTIPLE = 16
"""Of which both sizes of a weight have to be one: the products of GPUs take no others."""


class Float8Precision(MixedPrecision):
    """Trains with the products of linear layers in 8-bit floats, and all else as `bf16-mixed` does.

    Weights, gradients and optimizer are in float32. A layer takes its inputs in bfloat16, rounds
    them, its weight and in backward the gradient of its outputs to 8 bits, each with a scale, and
    gives bfloat16. Layers are changed within a step only: what is saved and loaded is that of any
    other precision.

    Args:
        recipe: one of torchao's: `"tensorwise"`, with a scale for each tensor, `"rowwise"`, with
            one for each row, or `"rowwise_with_gw_hp"`, likewise, and the gradients of weights in
            bfloat16; or a `torchao.float8.Float8LinearConfig`.
        name: for messages.
        skip: linear layers that stay in bfloat16, by their names: `["head", "layers.*.gate"]`.
        filter_fn: which of the others are computed so, by the layer and its name; None is all of
            them. In either case only those whose sizes are multiples of 16.
    """

    def __init__(
        self,
        recipe: Any = "tensorwise",
        *,
        name: str | None = None,
        skip: Collection[str] = (),
        filter_fn: Callable[[nn.Linear, str], bool] | None = None,
    ) -> None:
        super().__init__(torch.bfloat16)
        self._config = _config_of(recipe)
        self.name = name or (
            f"Float8Precision({recipe!r})" if isinstance(recipe, str) else "Float8Precision"
        )
        self._skip, self._filter = [skip] if isinstance(skip, str) else [*skip], filter_fn
        self._strategy: Strategy | None = None
        self._begin()

    def _begin(self) -> None:
        self._layers: weakref.WeakKeyDictionary[nn.Linear, Float8Layer] = (
            weakref.WeakKeyDictionary()
        )
        self._forwards = SwappedForwards(self._layers)

    def __getstate__(self) -> dict[str, Any]:
        # a process that is made has layers of its own
        return {**self.__dict__, "_layers": None, "_forwards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """The formats of what `fully_shard` gathers and reduces, see `core_fsdp.SetsPolicy`."""
        from torch.distributed.fsdp import MixedPrecisionPolicy

        return MixedPrecisionPolicy(
            param_dtype=self.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )

    def connect(self, strategy: Any) -> None:
        """Learn the device, and refuse strategies under which layers don't compute with the weights
        that they have.

        Raises:
            ConfigurationError: with those that can.
        """
        super().connect(strategy)
        if not isinstance(strategy, Strategy):
            return
        self._strategy = strategy
        kind = type(strategy).__name__
        owns = strategy.capabilities & (Capability.SHARDED_STATE | Capability.COMPILED_STEP)
        if owns and not getattr(strategy, "takes_policies", False):
            raise ConfigurationError(
                f"precision={self.name!r} has linear layers compute in a way of its own, and "
                f"{kind}, with these options, keeps their weights in a form, or calls them in a "
                "way, of its own. Use a single device, strategy='ddp' or 'fsdp', or "
                "precision='bf16-mixed'."
            )
        devices = strategy.parallel_devices
        if types := {device.type for device in devices} - {"cpu", "cuda"}:
            raise ConfigurationError(
                f"precision={self.name!r} computes on CUDA devices, and emulates that on a CPU, "
                f"and this run is on {', '.join(sorted(types))!r}. Use precision='bf16-mixed'."
            )
        if strategy.world_size == 1 and len(devices) > 1:
            raise ConfigurationError(
                f"precision={self.name!r} changes layers of one process, and {kind} copies them to "
                f"{len(devices)} devices, which would compute with the first one's weights. Use "
                "strategy='ddp'."
            )

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Note which linear layers compute in 8 bits; nothing is changed.

        Raises:
            ConfigurationError: none does, or `skip` names one that isn't there; or the device's
                products fail.
        """
        super().convert_module(module)
        layers = {name: layer for name, layer in module.named_modules() if _is_called(layer)}
        if unknown := [
            one for one in self._skip if not any(fnmatchcase(name, one) for name in layers)
        ]:
            raise ConfigurationError(
                f"precision={self.name!r}: skip names {unknown[0]!r}, and {type(module).__name__} "
                f"has no such linear layer, among {', '.join(list(layers)[:8]) or 'none'}. Correct "
                "it, or leave it out."
            )
        taken = {name: layer for name, layer in layers.items() if self._takes(name, layer)}
        if not taken:
            raise ConfigurationError(self._none(module, layers))
        if left := [name for name in layers if name not in taken]:
            _log.info(
                "%s: %d linear layers are in bfloat16: %s.",
                self.name,
                len(left),
                ", ".join(left[:8]),
            )
        device = (
            next(iter(taken.values())).weight.device
            if self._strategy is None
            else self._strategy.root_device
        )
        products = self._products_on(device)
        self._layers.update({layer: Float8Layer(layer, products) for layer in taken.values()})
        return module

    def wrap_weights(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """All ranks, before sharding. Wrap weights of one scale, so that 8 bits of them are
        gathered.
        """
        from torchao.float8 import ScalingGranularity, ScalingType
        from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor as Gathered

        cast = self._config.cast_config_weight
        if (
            cast.scaling_type is not ScalingType.DYNAMIC
            or cast != self._config.cast_config_weight_for_grad_input
        ):
            return
        owners = Counter(id(one) for part in module.modules() for one in part._parameters.values())
        for part in module.modules():
            weight = part._parameters.get("weight")
            if (
                part not in self._layers
                or weight is None
                or isinstance(weight, DTensor)
                or owners[id(weight)] > 1
            ):
                continue
            is_even = weight.shape[0] % mesh.size() == 0
            if cast.scaling_granularity is ScalingGranularity.TENSORWISE and is_even:
                products = self._layers[part].products  # type: ignore[index]  # a linear layer, as all of them
                wrapped: Any = Gathered(
                    weight.detach(), products.linear_mm_config, cast.target_dtype
                )
                part.weight = nn.Parameter(wrapped, requires_grad=weight.requires_grad)

    def forward_context(self, device_type: str) -> Float8Forward:  # type: ignore[override]  # a context too
        """Autocast to bfloat16, in which linear layers compute in 8 bits. May be entered as
        `MixedPrecision`'s.
        """
        return Float8Forward(super().forward_context(device_type), self._forwards)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients. Layers whose forward is computed again, by activation checkpointing,
        do it in 8 bits.
        """
        with self._forwards:
            super().backward(loss, *args, **kwargs)

    def _takes(self, name: str, layer: Any) -> bool:
        return (
            _fits(layer)
            and not any(fnmatchcase(name, one) for one in self._skip)
            and (self._filter is None or self._filter(layer, name))
        )

    def _none(self, module: nn.Module, layers: dict[str, Any]) -> str:
        owner, use = type(module).__name__, "Use precision='bf16-mixed'."
        if not layers:
            return f"precision={self.name!r} is for linear layers, and {owner} calls none. {use}"
        name, layer = next(
            ((name, one) for name, one in layers.items() if not _fits(one)), (None, None)
        )
        if layer is None or any(map(_fits, layers.values())):
            return (
                f"precision={self.name!r}: skip and filter_fn leave none of {owner}'s linear "
                f"layers. {use}"
            )
        return (
            f"precision={self.name!r} needs linear layers whose sizes are multiples of "
            f"{_MULTIPLE}, and none of {owner}'s is: the weight of {name or 'itself'!r} has the "
            f"shape {tuple(layer.weight.shape)}. Make them wider, or use precision='bf16-mixed'."
        )

    def _products_on(self, device: torch.device) -> Any:
        """A Float8Linear of torchao, which says how products are computed on a device."""
        if _multiplies(device, self._config):
            products = _products(self._config)
            self._check_products(products, device)
            return products
        if self._strategy is None or self._strategy.is_global_zero:
            warnings.warn(
                f"precision={self.name!r} is emulated on this {device.type!r}, which has no matrix "
                "products of 8-bit floats: the numbers are rounded as theirs are, and steps are "
                "slower than with 'bf16-mixed'. NVIDIA's GPUs have them from compute capability "
                "8.9 on, and with a scale for each row from 9.0 on.",
                stacklevel=2,
            )
        return _products(replace(self._config, emulate=True))

    def _check_products(self, products: Any, device: torch.device) -> None:
        layer = nn.Linear(_MULTIPLE, _MULTIPLE, device=device)
        try:
            Float8Layer(layer, products)(layer.weight.bfloat16()).sum().backward()
        except Exception as error:
            raise ConfigurationError(
                f"precision={self.name!r}: a product of 8-bit floats fails on {device}: "
                f"{str(error).splitlines()[0]} Use precision='bf16-mixed'."
            ) from error


class Float8Forward:
    """A context of two: autocast, and the layers' forwards.

    Args:
        autocast: to the format of all that isn't in 8 bits.
        forwards: of the layers.
    """

    def __init__(self, autocast: torch.autocast, forwards: SwappedForwards) -> None:
        self._autocast, self._forwards = autocast, forwards

    def __enter__(self) -> None:
        self._autocast.__enter__()
        self._forwards.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._forwards.__exit__(kind, error, trace)
        self._autocast.__exit__(kind, error, trace)


def _config_of(recipe: Any) -> Any:
    """Torchao's configuration. GPUs multiply by 16 rows at least: a last batch may have fewer, and
    is padded.
    """
    float8 = library.load_float8()
    recipes: Sequence[str] = [one.value for one in float8.Float8LinearRecipeName]
    if recipe in recipes:
        return replace(float8.Float8LinearConfig.from_recipe_name(recipe), pad_inner_dim=True)
    if isinstance(recipe, float8.Float8LinearConfig):
        return recipe
    raise ConfigurationError(
        f"Float8Precision({recipe!r}): expected {', '.join(map(repr, recipes))}, or a "
        "torchao.float8.Float8LinearConfig."
    )


def _products(config: Any) -> Any:
    # torchao mends torch's compiler where a module is converted.
    holder = nn.Sequential(nn.Linear(_MULTIPLE, _MULTIPLE, device="meta"))
    config = replace(config, enable_fsdp_float8_all_gather=False)  # `wrap_weights` does it
    return library.load_float8().convert_to_float8_training(holder, config=config)[0]


def _multiplies(device: torch.device, config: Any) -> bool:
    """True if a device has the products that a configuration needs."""
    if device.type != "cuda" or config.emulate:
        return False
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip:
        return capability >= (9, 4)  # MI300
    return capability >= (
        (8, 9) if config.cast_config_weight.scaling_granularity.value == "tensorwise" else (9, 0)
    )


def _is_called(layer: nn.Module) -> bool:
    """True for a linear layer that computes in its own forward, unlike that within
    `MultiheadAttention`.
    """
    unlike = isinstance(
        layer, nn.modules.linear.NonDynamicallyQuantizableLinear
    ) or "forward" in vars(layer)
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and not unlike


def _fits(layer: Any) -> bool:
    return all(size % _MULTIPLE == 0 for size in layer.weight.shape)
