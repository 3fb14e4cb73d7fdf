"""PopTorch's options of the programs that are compiled: the given ones, or those made here."""

from __future__ import annotations

import copy
from typing import Any

import torch

from core import ConfigurationError, Strategy
from core_ipu import library


class ProgramOptions(Strategy):
    """Base of `IPUStrategy`: the options of its programs.

    Attributes:
        device_iterations: updates in a call of the training program, batches in one of the others.
        ipus_per_replica: IPUs of one copy of the model.
        training_opts: as the user gave them; None makes them here.
        inference_opts: the same for validation, test and prediction.
    """

    device_iterations: int
    ipus_per_replica: int
    training_opts: Any
    inference_opts: Any
    _accumulated = 1

    @property
    def num_replicas(self) -> int:
        """Copies of the model."""
        return max(1, len(self.parallel_devices) // self.ipus_per_replica)

    def training_options(self) -> Any:
        """PopTorch's options of the training program. Override it to change them.

        Raises:
            ConfigurationError: the given ones and the Trainer both say how many batches are
                accumulated.
        """
        poptorch = library.load()
        number = self._accumulated
        options = self._options(self.training_opts, poptorch)
        if (given := options.Training.gradient_accumulation) > 1 and number > 1:
            raise ConfigurationError(
                f"training_opts say gradientAccumulation({given}), and "
                f"accumulate_grad_batches={number}. Leave one of them out."
            )
        options.Training.gradientAccumulation(max(given, number))
        if options.defaultOutputMode():
            # what is logged counts every batch, as on other devices
            options.outputMode(poptorch.OutputMode.All)
        return options

    def inference_options(self) -> Any:
        """PopTorch's options of the programs for validation, test and prediction. Override it to
        change them.
        """
        return self._options(self.inference_opts, library.load())

    def _options(self, given: Any, poptorch: Any) -> Any:
        if given is not None:
            return copy.deepcopy(given)  # PopTorch freezes those that it gets
        options = poptorch.Options()
        options.deviceIterations(self.device_iterations)
        options.replicationFactor(self.num_replicas)
        if self.num_replicas > 1:
            # else PopTorch compiles no model that writes into buffers
            options.broadcastBuffers(False)
        with torch.random.fork_rng(devices=[]):  # it seeds torch too
            options.randomSeed(torch.initial_seed() % 2**31)
        return options

    def _check_options(self, name: str, options: Any, poptorch: Any) -> None:
        if options is None:
            return
        if not isinstance(options, poptorch.Options):
            raise ConfigurationError(f"{name}={options!r:.80}: expected poptorch.Options.")
        if options.replication_factor != self.num_replicas:
            raise ConfigurationError(
                f"{name} say replicationFactor({options.replication_factor}), and devices="
                f"{len(self.parallel_devices)} with ipus_per_replica={self.ipus_per_replica} are "
                f"{self.num_replicas} replicas. Make them agree."
            )
        if name == "inference_opts" and options.Training.gradient_accumulation != 1:
            raise ConfigurationError(
                "inference_opts have gradientAccumulation, which is for training. Leave it out."
            )


def num_joined(options: Any) -> int:
    """Micro-batches in one call of a program: iterations x replicas x accumulation."""
    return int(
        options.device_iterations
        * options.replication_factor
        * options.Training.gradient_accumulation
    )
