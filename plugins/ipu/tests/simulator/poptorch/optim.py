"""[options] "Optimizers"; [features] "Optimizers" and "Reading and writing optimizer state".

Built-in implementations compute, and nothing of the Python classes runs. They are torch's here: the
vendor calls them mathematically identical ([options] poptorch.optim.SGD, Adam, AdamW, RMSprop).
LAMB isn't simulated.
"""

import copy

import torch

from poptorch.device import Error


class Optimizer:
    """The base of the optimizers ([source] python/optim.py). State is read from and written to the
    IPU.

    [options] "Optimizers": options that are given are variable, all others are compiled into the
    program.
    """

    _clips = True

    def __init__(self, params, **given):
        self.max_grad_norm = (
            given.pop("max_grad_norm", float("inf")) if self._clips else float("inf")
        )
        super().__init__(params, **given)
        self.variable = set(given)
        self._ipu = {"ipu_state": None, "ipu_param": None}
        self._executor = None
        self.ipu_state_is_dirty = self.host_state_is_dirty = False

    def state_dict(self):
        """[features]: read from the IPU. Its structure differs from PyTorch's."""
        if self._executor is not None and self.host_state_is_dirty:
            self._ipu = self._executor._built_in.read_state()
            self.host_state_is_dirty = False
        return {**self._ipu, **torch.optim.Optimizer.state_dict(self)}

    def load_state_dict(self, state):
        """[features]: written to the IPU. What native PyTorch has saved can't be loaded: it has no
        such entries.
        """
        torch.optim.Optimizer.load_state_dict(self, state)
        self._ipu = {name: copy.copy(state[name]) for name in ("ipu_state", "ipu_param")}
        self.ipu_state_is_dirty, self.host_state_is_dirty = True, False

    def has_state(self):
        return self._ipu["ipu_state"] is not None and self._ipu["ipu_param"] is not None


class SGD(Optimizer, torch.optim.SGD):
    """[options] poptorch.optim.SGD, the separate tensor variant."""


class Adam(Optimizer, torch.optim.Adam):
    """[options] poptorch.optim.Adam. AMSGrad isn't supported."""


class AdamW(Optimizer, torch.optim.AdamW):
    """[options] poptorch.optim.AdamW. AMSGrad isn't supported."""


class RMSprop(Optimizer, torch.optim.RMSprop):
    """[options] poptorch.optim.RMSprop. It has no `max_grad_norm`."""

    _clips = False


# What can change over time, of each group; all else is compiled into the program ([source]
# _optimizer_attributes.py).
_ATTRIBUTES = {
    torch.optim.SGD: ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    torch.optim.AdamW: ("lr", "betas", "weight_decay", "eps"),
    torch.optim.Adam: ("lr", "betas", "weight_decay", "eps"),
    torch.optim.RMSprop: ("lr", "momentum", "weight_decay", "alpha", "eps", "centered"),
}
# Names of state tensors: "Accl1___lin.weight" ([source] tests/optimizers_test.py,
# test_read_ipu_state; and PopART's include/popart/tensornames.hpp, src/patterns/adamdecompose.cpp,
# adaptivedecompose.cpp, sgd2decompose.cpp).
_STATE = {
    torch.optim.SGD: {"Accl1___": "momentum_buffer"},
    torch.optim.AdamW: {"Accl1___": "exp_avg", "Accl2___": "exp_avg_sq", "Step___": "step"},
    torch.optim.Adam: {"Accl1___": "exp_avg", "Accl2___": "exp_avg_sq", "Step___": "step"},
    torch.optim.RMSprop: {
        "Accl1___": "square_avg",
        "Accl2___": "grad_avg",
        "Accl3___": "momentum_buffer",
    },
}


class BuiltIn:
    """The optimizer on the IPU: torch's, on the IPU's own weights, with what was read from the one
    in Python.
    """

    def __init__(self, optimizer, told, weights, names):
        """Take over.

        Args:
            optimizer: in Python.
            told: options of its groups, as `setOptimizer` was given them last.
            weights: on the device, by name.
            names: of the host's parameters, by id.
        """
        # AdamW before Adam, of which it is a subclass in newer releases of torch.
        self.kind = next(kind for kind in _ATTRIBUTES if isinstance(optimizer, kind))
        self._names = [
            [names[id(each)] for each in group["params"]] for group in optimizer.param_groups
        ]
        self._constants = self._read_constants(optimizer)
        groups = [
            {**self._read(group), "params": [weights[name] for name in members]}
            for group, members in zip(told, self._names, strict=True)
        ]
        self._inner = self.kind(groups)
        self.max_grad_norm = getattr(optimizer, "max_grad_norm", float("inf"))

    def update_attributes(self, optimizer):
        """[features] "Constant attributes": one that was compiled into the program can't be
        changed.
        """
        if (found := self._read_constants(optimizer)) != self._constants:
            raise Error(
                f"Cannot update constant attributes: the program has {self._constants}, and not "
                f"{found}."
            )
        for own, group in zip(self._inner.param_groups, optimizer.param_groups, strict=True):
            own.update(self._read(group))

    def step(self, gradients):
        members = [weight for group in self._inner.param_groups for weight in group["params"]]
        for weight in members:
            weight.grad = gradients.get(id(weight))
        if self.max_grad_norm != float("inf"):
            torch.nn.utils.clip_grad_norm_(members, self.max_grad_norm)
        self._inner.step()
        self._inner.zero_grad()

    def read_state(self):
        state = {}
        for name, weight in self._weights():
            entry = self._inner.state.get(weight, {})
            for prefix, key in _STATE[self.kind].items():
                if isinstance(value := entry.get(key), torch.Tensor):
                    state[prefix + name] = value.clone()
        groups = {
            f"learningRate___{index}": torch.tensor(each["lr"])
            for index, each in enumerate(self._inner.param_groups)
        }
        return {"ipu_state": state, "ipu_param": groups}

    def write_state(self, state):
        """Missing entries are left as they are ([source] poptorch.cpp, writeOptimizerState)."""
        for name, weight in self._weights():
            found = {
                key: state[prefix + name]
                for prefix, key in _STATE[self.kind].items()
                if prefix + name in state
            }
            if found:
                entry = {key: value.detach().clone() for key, value in found.items()}
                if self.kind is torch.optim.RMSprop:
                    entry["step"] = torch.tensor(1.0)
                self._inner.state[weight] = entry

    def _weights(self):
        for members, group in zip(self._names, self._inner.param_groups, strict=True):
            yield from zip(members, group["params"], strict=True)

    def _read(self, group):
        return {name: copy.copy(group[name]) for name in _ATTRIBUTES[self.kind]}

    def _read_constants(self, optimizer):
        variable = {"lr", *getattr(optimizer, "variable", ())}
        values = {}
        for name in _ATTRIBUTES[self.kind]:
            if name not in variable:
                values[name] = [group[name] for group in optimizer.param_groups]
        return values
