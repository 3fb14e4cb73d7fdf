"""A right strategy that is meant to differ from one device: the mutants of the suite for those are
changes of it.
"""

import torch
from averaging import AveragingStrategy


class CompressingStrategy(AveragingStrategy):
    """Sends the sign of each gradient and one size, and adds what that leaves out to the next
    gradient.

    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML
    2019.
    """

    def __init__(self, **parts):
        super().__init__(**parts)
        self.rest = {}

    def average(self, manual):
        for handle in self.session.handles:
            for name, parameter in handle.module.named_parameters():
                if parameter.grad is not None:
                    self.compress(name, parameter.grad)
                    self.exchange(parameter.grad)

    def compress(self, name, gradient):
        wanted = gradient + self.rest.get(name, 0)
        gradient.copy_(wanted.sign() * wanted.abs().mean())
        self.keep(name, wanted - gradient)

    def keep(self, name, rest):
        self.rest[name] = rest

    def rank_state_dict(self):
        return {"rest": self.rest}

    def load_rank_state_dict(self, state):
        self.rest = dict(state["rest"])

    def release(self):
        super().release()
        self.rest = {}


class LocalStrategy(AveragingStrategy):
    """Every rank trains alone; every second step all take the mean of weights, buffers and
    moments.
    """

    steps = 0

    def average(self, manual):
        pass

    def after_step(self):
        self.steps += 1
        if self.steps == 2:
            self.synchronize_model()

    def synchronize_model(self):
        if self.steps == 0:
            return
        self.steps = 0
        moments = [
            value
            for each in self.optimizers
            for entry in each.state.values()
            for value in entry.values()
        ]
        with torch.no_grad():
            for tensor in (*self.parameters(), *moments):
                if isinstance(tensor, torch.Tensor):
                    tensor.copy_(self.reduce(tensor))

    def release(self):
        super().release()
        self.steps = 0
