"""[options] poptorch.Options: each option is set by a method that returns the options, and read as
an attribute.
"""

import copy

import torch

from poptorch.enums import OutputMode


class _Settings:
    """Values that can't be changed any more once a model or a loader has them ([source]
    python/_options_impl.py).
    """

    _is_frozen = False

    def _set(self, **values):
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")
        self.__dict__.update(values)
        return self

    def __getattr__(self, name):
        raise AttributeError(
            f"{type(self).__name__}.{name} isn't documented, or the simulator doesn't have it"
        )


class _TrainingOptions(_Settings):
    """[options] poptorch.options._TrainingOptions."""

    def __init__(self):
        self.gradient_accumulation = 1

    def gradientAccumulation(self, gradient_accumulation):
        return self._set(gradient_accumulation=gradient_accumulation)


class Options(_Settings):
    """[options] poptorch.Options."""

    def __init__(self):
        self.device_iterations = self.replication_factor = 1
        self.output_mode = OutputMode.Default
        self.broadcast_buffers = True
        self._training = _TrainingOptions()

    @property
    def Training(self):
        return self._training

    def deviceIterations(self, device_iterations):
        return self._set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor):
        return self._set(replication_factor=replication_factor)

    def outputMode(self, output_mode):
        assert isinstance(output_mode, OutputMode)
        return self._set(output_mode=output_mode)

    def defaultOutputMode(self):
        return self.output_mode == OutputMode.Default

    def broadcastBuffers(self, broadcast_buffers=True):
        return self._set(broadcast_buffers=broadcast_buffers)

    def randomSeed(self, random_seed):
        """Seeds the host too ([source] python/options.py)."""
        assert isinstance(random_seed, int)
        torch.manual_seed(random_seed)
        return self._set(random_seed=random_seed)

    def _freeze(self):
        self._is_frozen = self._training._is_frozen = True

    def clone(self):
        clone = copy.deepcopy(self)
        clone.__dict__.pop("_is_frozen", None)
        clone._training.__dict__.pop("_is_frozen", None)
        return clone
