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

    def setup_distributed(self):
        super().setup_distributed()
        self.connected()

    def connected(self):
        """For mutants: this rank has met the others."""

    def setup_module(self, module):
        super().setup_module(module)
        if self.world_size > 1:
            self.begin_together(module)
        self.begun(module)
        return self.model

    def begun(self, module):
        """For mutants: a module is set up."""

    def begin_together(self, module):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def run_training_step(self, batch, batch_idx, step):
        self.before_batch(step)
        return super().run_training_step(batch, batch_idx, step)

    def before_batch(self, step):
        """For mutants: a batch comes next."""

    def optimizer_step(self, optimizer, closure=None):
        self.before_step(optimizer)
        updated = super().optimizer_step(optimizer, closure)
        self.after_step()
        return updated

    def before_step(self, optimizer):
        """For mutants: an optimizer's step comes next."""

    def after_step(self):
        """For mutants: it has stepped."""

    def get_module_state_dict(self, module, *, layout=None):
        return self.saved(super().get_module_state_dict(module, layout=layout), module, layout)

    def saved(self, state, module, layout):
        """For mutants: what a checkpoint gets of the weights."""
        return state

    def load_module_state_dict(self, module, state, *, strict=True):
        super().load_module_state_dict(module, self.loaded(state, module), strict=strict)

    def loaded(self, state, module):
        """For mutants: what a checkpoint gives."""
        return state

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
        return [
            parameter for handle in self.session.handles for parameter in handle.module.parameters()
        ]

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
