"""A module in other forms: ONNX and TorchScript."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from core import ConfigurationError, Module
from core.registry import require_package
from core_lightning.utilities.nested_data import move_data_to_device


class Exports(Module):
    """A module that writes itself in other forms."""

    def to_onnx(self, file_path: Any = None, input_sample: Any = None, **options: Any) -> Any:
        """Write the model as ONNX to a path or an open file, if there is one; see
        `torch.onnx.export`.

        `input_sample` are inputs of `forward`; None are those of `example_input_array`.
        """
        require_package("onnx", user="to_onnx", install="onnx onnxscript")
        sample = self._example(input_sample, "to_onnx", "input_sample")
        path = os.fspath(file_path) if isinstance(file_path, os.PathLike) else file_path
        with self._exported():
            return torch.onnx.export(self, sample, path, **options)

    def to_torchscript(
        self,
        file_path: Any = None,
        method: str = "script",
        example_inputs: Any = None,
        **options: Any,
    ) -> Any:
        """The module as TorchScript, in evaluation mode; written too, if there is a path. See
        `torch.jit`.

        The method is `"script"` or `"trace"`, of inputs of `forward`; None are those of
        `example_input_array`.
        """
        if method not in ("script", "trace"):
            raise ConfigurationError(
                f"to_torchscript(method={method!r}): expected 'script' or 'trace'."
            )
        with self._exported(), torch.no_grad():
            self.eval()
            if method == "script":
                made = torch.jit.script(self, **options)
            else:
                sample = self._example(example_inputs, "to_torchscript", "example_inputs")
                made = torch.jit.trace(self, sample, **options)
        if file_path is not None:
            torch.jit.save(made, os.fspath(file_path))
        return made

    def to_tensorrt(self, *_: Any, **__: Any) -> None:
        """Refuse: it isn't there."""
        raise ConfigurationError(
            "to_tensorrt isn't on core: call torch_tensorrt.compile(module, inputs=...) yourself."
        )

    def _example(self, given: Any, method: str, argument: str) -> Any:
        sample = getattr(self, "example_input_array", None) if given is None else given
        if sample is None:
            raise ConfigurationError(
                f"{method} needs inputs: pass {argument}=, or set the module's example_input_array."
            )
        return move_data_to_device(sample, self.device)

    @contextlib.contextmanager
    def _exported(self) -> Iterator[None]:
        """Leave the mode as it was."""
        mode = self.training
        try:
            yield
        finally:
            self.train(mode)
