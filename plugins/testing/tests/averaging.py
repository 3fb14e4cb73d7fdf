"""A right strategy, small enough to be seen through: the mutants are changes of it."""

from contextlib import contextmanager

import torch.distributed as dist

from core import Capability
from core.strategies import ParallelStrategy


class AveragingStrategy(ParallelStrategy):
    """Averages all gradients over ranks after each backward."""

    launcher_name = "fork"
    syncs = True

    @property
    def capabilities(self):
        return super().capabilities | Capability.NO_SYNC

    def setup_module(self, module):
        super().setup_module(module)
        if self.world_size > 1:
            self.begin_together(module)
        return self.model

    def begin_together(self, module):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def backward(self, loss, module, *, manual=False, **kwargs):
        super().backward(loss, module, manual=manual, **kwargs)
        if self.syncs and self.world_size > 1:
            self.average(manual)

    def average(self, manual):
        for parameter in self.parameters():
            if parameter.grad is not None:
                self.exchange(parameter.grad)

    def parameters(self):
        """Of all modules, in the same order on all ranks."""
        return [parameter for handle in self.session.handles for parameter in handle.module.parameters()]

    def exchange(self, gradient):
        dist.all_reduce(gradient)
        gradient /= self.world_size

    @contextmanager
    def no_backward_sync(self, module, enabled=True):
        before, self.syncs = self.syncs, self.syncs and not enabled
        try:
            yield
        finally:
            self.syncs = before
