"""The interface of modules that answer requests."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ServableModule(abc.ABC, torch.nn.Module):
    """A module with what a server asks of it. Nothing in core serves it."""

    @abc.abstractmethod
    def configure_payload(self) -> dict[str, Any]:
        """An example of a request's body."""

    @abc.abstractmethod
    def configure_serialization(
        self,
    ) -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
        """For each input a function that decodes it, and for each output one that encodes it."""

    @abc.abstractmethod
    def serve_step(self, *args: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        """The outputs for decoded inputs."""

    @abc.abstractmethod
    def configure_response(self) -> dict[str, Any]:
        """The answer to the example."""
