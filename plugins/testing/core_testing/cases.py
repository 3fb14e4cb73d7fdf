"""The ways to train in which every strategy must agree with one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from core import Capability
from core_testing import networks
from core_testing.trainer_names import HAS_TRAINER, Module

if TYPE_CHECKING:
    from torch.optim import Optimizer


def _of_all(kind: type[Optimizer], module: Module, **options: Any) -> Optimizer:
    return kind(module.parameters(), **options)


def _of_trainable(module: Module) -> Optimizer:
    return torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9
    )


def _in_two_groups(module: Module) -> Optimizer:
    trained = [
        (name, parameter)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    ]
    weights = [parameter for name, parameter in trained if name.endswith("weight")]
    biases = [parameter for name, parameter in trained if name.endswith("bias")]
    groups: list[dict[str, Any]] = [
        {"params": weights},
        {"params": biases, "lr": 0.03, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def _by_matrices(module: Module) -> list[Optimizer]:
    parameters = list(module.parameters())
    matrices = torch.optim.Muon([own for own in parameters if own.ndim == 2], lr=0.02)
    return [matrices, torch.optim.AdamW([own for own in parameters if own.ndim != 2], lr=0.01)]


SGD = partial(_of_all, torch.optim.SGD, lr=0.1, momentum=0.9)
STEADY = partial(_of_all, torch.optim.SGD, lr=0.05)
ADAM = partial(_of_all, torch.optim.Adam, lr=0.01)
ADAMW = partial(_of_all, torch.optim.AdamW, lr=0.01)


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
        name: of the case.
        network: makes the module that is trained; called with the case.
        optimizer: makes its optimizer; called with the network.
        loop: the Trainer's where core-training is installed, or one written by hand with Fabric.
        accumulate: batches of a window.
        num_epochs: of six batches each; many show what a strategy does late.
        clip: largest norm or value of gradients.
        clip_algorithm: `"norm"` or `"value"`.
        scheduler: interval of a scheduler, `"step"` or `"epoch"`; None for no scheduler.
        shuffle: shuffle the data.
        equal_shares: every batch consists of equal parts, one a rank.
        begins_apart: every rank has built other weights; those of rank 0 count.
        set_to_none: True to drop gradients in a loop by hand, False to fill them with zeros.
        dtype: of the model and its data.
        length: of the sequence that each sample is, which attention looks at; None for samples that
            are none.
        precision: of strategy and Trainer.
        num_experts: of a mixture after the first layer of each network; 0 for none.
        in_bfloat16: the optimizer computes in bfloat16, whatever gradients are: the last bit of one
            in float32 may then change a whole matrix.
        needs: capabilities that a strategy must declare for it.
        unless: capabilities that leave no room for it.
    """

    name: str
    network: Callable[[Case], Module] = networks.Perceptron
    optimizer: Callable[[Module], Any] = SGD
    loop: Literal["trainer", "fabric"] = "trainer" if HAS_TRAINER else "fabric"
    accumulate: int = 1
    num_epochs: int = 2
    clip: float | None = None
    clip_algorithm: Literal["norm", "value"] = "norm"
    scheduler: Literal["step", "epoch"] | None = None
    shuffle: bool = False
    equal_shares: bool = False
    begins_apart: bool = False
    set_to_none: bool = True
    dtype: torch.dtype = torch.float64
    length: int | None = None
    precision: str | None = None
    num_experts: int = 0
    in_bfloat16: bool = False
    needs: Capability = Capability.NONE
    unless: Capability = Capability.NONE

    @property
    def of_trainer(self) -> bool:
        """True if its loop is the Trainer's."""
        return self.loop == "trainer"

    def with_dtype(self, dtype: torch.dtype) -> Case:
        """The same case in another number format."""
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        return self.name


def _by_hand(name: str, **options: Any) -> Case:
    return Case(name, loop="fabric", unless=Capability.COMPILED_STEP, **options)


CASES = (
    Case("sgd_momentum"),
    Case("adam", optimizer=ADAM),
    Case("adamw", optimizer=ADAMW),
    Case("adamw_fused", optimizer=partial(ADAMW, fused=True)),
    Case("parameter_groups", optimizer=_in_two_groups),
    Case("tied_weights", network=networks.Tied),
    Case("frozen_weights", network=networks.Frozen, optimizer=_of_trainable),
    Case("unused_weights", network=networks.Unused),
    Case("batch_norm", network=networks.Normalized, loop="trainer", equal_shares=True),
    Case("weights_that_begin_apart", begins_apart=True),
    Case("buffers_that_begin_apart", network=networks.Shifted, begins_apart=True),
    Case("shuffled", shuffle=True),
    Case("many_steps", num_epochs=10, optimizer=STEADY),
    Case("accumulated", accumulate=2, optimizer=ADAMW),
    Case("accumulated_to_a_short_window", accumulate=4),
    Case("clipped_by_norm", clip=0.1),
    Case("clipped_by_value", clip=0.02, clip_algorithm="value", needs=Capability.CLIP_BY_VALUE),
    Case("accumulated_and_clipped", accumulate=2, clip=0.1),
    Case("scheduler_by_step", scheduler="step"),
    Case("scheduler_by_epoch", scheduler="epoch"),
    Case(
        "manual_optimization",
        network=networks.Manual,
        loop="trainer",
        needs=Capability.MANUAL_OPTIMIZATION,
    ),
    Case(
        "two_optimizers",
        loop="trainer",
        network=networks.Adversarial,
        needs=Capability.MANUAL_OPTIMIZATION | Capability.SEVERAL_OPTIMIZERS,
    ),
    Case(
        "matrices_apart",
        loop="trainer",
        optimizer=_by_matrices,
        accumulate=2,
        clip=0.1,
        in_bfloat16=True,
        needs=Capability.SEVERAL_OPTIMIZERS,
    ),
    _by_hand("fabric", optimizer=ADAMW),
    _by_hand("fabric_zeroed_gradients", set_to_none=False),
    _by_hand("fabric_accumulated", accumulate=2, clip=0.1),
    _by_hand("fabric_shuffled", shuffle=True),
    _by_hand("fabric_many_steps", num_epochs=10, optimizer=STEADY),
)

NOISY = Case("noisy", network=networks.Noisy, optimizer=ADAMW, scheduler="step", shuffle=True)
"""A case with all that a resumed run must restore: momentum, schedule, order of the data, random
numbers.
"""

ASSORTED = Case("assorted", network=networks.Assorted, optimizer=_in_two_groups)
"""A case with all that a checkpoint must hold of a module and its optimizer."""

RESUMED = Case("resumed", optimizer=ADAMW, scheduler="step", shuffle=True)
"""The same without random numbers in the step, which differ between numbers of ranks."""
