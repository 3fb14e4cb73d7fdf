"""Parts that need no hardware, for the tests of resolve."""

import torch

from core import Accelerator, CheckpointIO, ClusterEnvironment, Found, Launcher, Precision, Strategy


class FourDevices(Accelerator):
    """Four devices of torch's type `meta`, of which `"auto"` takes three."""

    @classmethod
    def detect(cls):
        return Found(4, priority=1000)

    def torch_devices(self, indices):
        return [torch.device("meta", index) for index in indices]

    def default_num_devices(self):
        return 3


class OneDevice(FourDevices):
    @classmethod
    def detect(cls):
        return Found(1, priority=1000)

    def default_num_devices(self):
        return 1


class ManyDevices(Strategy):
    """One process that drives all devices of its node."""


class ManyProcesses(Strategy):
    """One process a device."""

    launcher_name = "spawn"

    @property
    def num_processes_per_node(self):
        return len(self.parallel_devices)


class Cluster(ClusterEnvironment):
    """A scheduler that has started `size` processes."""

    size = 1
    priority = 1000

    @classmethod
    def detect(cls):
        return Found(cls.size, cls.priority)

    main_address = "127.0.0.1"
    main_port = 29500

    def world_size(self):
        return self.size

    def global_rank(self):
        return 0

    def local_rank(self):
        return 0

    def node_rank(self):
        return 0


class HalfPrecision(Precision):
    name = "half"


class MemoryIO(CheckpointIO):
    def save_checkpoint(self, state, path, *, collectives):
        raise NotImplementedError

    def load_checkpoint(self, path, *, collectives, state=None):
        raise NotImplementedError

    def remove_checkpoint(self, path, *, collectives):
        raise NotImplementedError


class HereLauncher(Launcher):
    def launch(self, function, *args, **kwargs):
        return function(*args, **kwargs)


def decision(resolution, subject):
    """What was decided on it."""
    return next(decision for decision in resolution.decisions if decision.subject == subject)
