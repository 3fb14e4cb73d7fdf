"""The import of Colossal-AI, and how it is installed beside a torch that its metadata doesn't
know.
"""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from core import PluginLoadError
from core.registry import import_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn
    from torch.optim import Optimizer

VERSION = "0.5.0"
"""The release whose parts are used here by their names."""

RECIPE = f"""\
`pip install colossalai` asks for torch<=2.5.1, and core needs a newer one. Colossal-AI {VERSION} works with that when \
it is installed without what it asks for, and after it what it imports:

    pip install --no-deps colossalai=={VERSION}
    pip install tqdm psutil packaging rich click contexttimer ninja safetensors einops pydantic sentencepiece google \\
        protobuf transformers==4.51.3 "peft<=0.13.2,>=0.7.1" galore_torch fabric rpyc==6.0.0

pip tells of conflicts with its metadata then, which do no harm here.
"""  # noqa: E501

_CLASSES = {
    "torch_ddp": "TorchDDPPlugin",
    "low_level_zero": "LowLevelZeroPlugin",
    "gemini": "GeminiPlugin",
    "hybrid_parallel": "HybridParallelPlugin",
}
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def load(name: str = "colossalai.booster") -> Any:
    """A module of Colossal-AI, such as `colossalai.booster.plugin`.

    Raises:
        PluginLoadError: it isn't installed, is another release, or can't be imported; with the
            recipe.
    """
    try:
        found = version("colossalai")
    except PackageNotFoundError:
        raise PluginLoadError(
            f"strategy='colossalai' needs Colossal-AI, which is not installed. {RECIPE}"
        ) from None
    if found != VERSION:
        raise PluginLoadError(
            f"strategy='colossalai' needs Colossal-AI {VERSION}, and {found} is installed. {RECIPE}"
        )
    with _quietly():
        return import_library(name, user="strategy='colossalai'", install=RECIPE)


@contextmanager
def _quietly() -> Iterator[None]:
    """A context in which Colossal-AI may be imported: what it sets, and what its libraries tell of
    others, goes by.
    """
    before = os.environ.get(_CONNECTIONS)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        os.environ.pop(_CONNECTIONS, None)
        if before is not None:
            os.environ[_CONNECTIONS] = before


def plugin_class(plugin: str) -> Any:
    """The class of the Colossal-AI plugin that the option `plugin` names."""
    return getattr(load("colossalai.booster.plugin"), _CLASSES[plugin])


def gemini_optimizers() -> frozenset[type]:
    """The classes of optimizers that Gemini steps, as Colossal-AI itself lists them."""
    return frozenset(load("colossalai.zero.gemini.gemini_optimizer")._AVAIL_OPTIM_LIST)


def booster(plugin: str, options: Mapping[str, Any], device_type: str) -> Any:
    """All ranks, in the process group. A Booster with one of its plugins."""
    # Colossal-AI calls in each step what torch 2.13 has given other names.
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning
    )
    accelerators = load("colossalai.accelerator")
    if accelerators.get_accelerator().name != device_type:  # it takes the best that it finds
        accelerators.set_accelerator(device_type)
    return load().Booster(plugin=plugin_class(plugin)(**options))


def boost(booster: Any, module: nn.Module, optimizer: Optimizer | None) -> tuple[Any, Any]:
    """All ranks. The module and the optimizer, as Colossal-AI wraps them."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "`broadcast_buffers` is deprecated", FutureWarning
        )  # torch 2.13 renames it
        boosted, wrapper, *_ = booster.boost(module, optimizer)
    return boosted, wrapper
