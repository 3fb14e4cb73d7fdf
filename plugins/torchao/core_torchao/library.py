"""torchao, imported when a precision is made."""

from __future__ import annotations

from typing import Any

from core import ConfigurationError


def load() -> Any:
    """Import `torchao.quantization`.

    Raises:
        ConfigurationError: torchao isn't installed, or not with this torch.
    """
    try:
        from torchao import quantization
    except ImportError as error:
        raise ConfigurationError(f"core-torchao needs torchao: {error}. Install it: pip install torchao.") from error
    return quantization
