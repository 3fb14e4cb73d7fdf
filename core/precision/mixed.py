"""`16-mixed` and `bf16-mixed`: float32 weights, and torch.autocast for what can be computed in 16
bits.

The method is Micikevicius et al., "Mixed Precision Training", https://arxiv.org/abs/1710.03740.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.amp import GradScaler

from core.contract.errors import ConfigurationError, DeviceError
from core.contract.precision import NumberFormats, Precision
from core.contract.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer

_NAMES = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed"}


def float16() -> MixedPrecision:
    """`16-mixed`: autocast to float16; the loss is scaled so that small gradients survive."""
    return MixedPrecision(torch.float16)


def bfloat16() -> MixedPrecision:
    """`bf16-mixed`: autocast to bfloat16, which has float32's range and needs no scaling."""
    return MixedPrecision(torch.bfloat16)


class MixedPrecision(Precision):
    """Weights, gradients and optimizer in float32; matrix products and convolutions in 16 bits.

    With a scaler, an optimizer's step is skipped when its gradients overflowed; `optimizer_step`
    then returns False. Optimizers that a `JointOptimizer` joins are skipped together.
    A scaler serves any number of optimizers, also several that share one backward. Gradients that
    are accumulated for one optimizer while another one goes on stepping would mix two scales: step
    both in the same window.

    Args:
        dtype: `torch.float16` or `torch.bfloat16`.
        scaler: scales the loss; by default a `torch.amp.GradScaler` of the device for float16, none
            for bfloat16.
    """

    def __init__(self, dtype: torch.dtype, *, scaler: GradScaler | None = None) -> None:
        if dtype not in _NAMES:
            raise ConfigurationError(
                f"MixedPrecision({dtype}): expected torch.float16 or torch.bfloat16."
            )
        self.dtype = dtype
        self.name = _NAMES[dtype]
        scales = dtype == torch.float16 or scaler is not None
        self._scaler: LossScaler | None = None
        if scales:
            self._scaler = LossScaler(scaler)
        self.formats = NumberFormats(
            torch.float32, dtype, torch.float32, torch.float32, scales_loss=scales
        )

    @property
    def scaler(self) -> GradScaler | None:
        """The scaler of the loss; made at the first use, None for bfloat16."""
        if self._scaler is None:
            return None
        return self._scaler.grad_scaler

    def connect(self, strategy: Any) -> None:
        """Learn the kind of device. Anything but a strategy (`...` in a sketch) is left alone.

        Raises:
            ConfigurationError: float16 on a CPU.
        """
        if not isinstance(strategy, Strategy) or not strategy.parallel_devices:
            return
        device_type = strategy.parallel_devices[0].type
        if device_type == "cpu" and self.dtype == torch.float16:
            raise ConfigurationError(
                "precision='16-mixed' is for GPUs, and this run is on a CPU, where float16 is slow "
                "and has nothing to gain. Use precision='bf16-mixed'."
            )
        if self._scaler:
            self._scaler.device_type = device_type

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Leave the module as it is.

        Raises:
            ConfigurationError: it holds float16 parameters, whose gradients can't be unscaled.
        """
        if self._scaler is None:
            return module
        for name, value in module.named_parameters():
            if value.dtype == torch.float16:
                raise ConfigurationError(
                    f"precision={self.name!r} keeps parameters in float32, and {name!r} of "
                    f"{type(module).__name__} is float16. Call module.float() before, or use "
                    "precision='16-true'."
                )
        return module

    def forward_context(self, device_type: str) -> torch.autocast:
        """An autocast context for one stage. It isn't to be entered inside itself, but inside
        another stage's it may.

        Raises:
            DeviceError: this kind of device can't autocast to the dtype.
        """
        if self._scaler:
            self._scaler.device_type = device_type
        try:
            with warnings.catch_warnings():
                # torch only warns, and computes in float32.
                warnings.simplefilter("error")
                return torch.autocast(device_type, self.dtype)
        except (RuntimeError, AssertionError, UserWarning) as error:
            raise DeviceError(
                f"precision={self.name!r} can't be had on {device_type!r}: "
                f"{str(error).splitlines()[0]} Use precision='32-true', or another accelerator."
            ) from error

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of the scaled `loss`, a scalar tensor."""
        if self._scaler:
            loss = self._scaler.scale(loss)
        loss.backward(*args, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Bring the optimizer's gradients back to their true size. A second call before its step
        does nothing.
        """
        if self._scaler:
            self._scaler.unscale(optimizer)

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any] | None = None
    ) -> bool:
        """Step the optimizer, unless its gradients overflowed.

        Returns:
            Whether parameters were updated.

        Raises:
            ConfigurationError: the optimizer needs a closure, or its gradients didn't come from
                `backward`.
        """
        if self._scaler is None:
            return super().optimizer_step(optimizer, closure)
        if closure is not None:
            raise ConfigurationError(
                f"{type(optimizer).__name__} evaluates the loss itself, through a closure, and "
                f"precision={self.name!r} scales the loss only around a plain step. Use "
                "precision='bf16-mixed' or '32-true'."
            )
        return self._scaler.step(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and how long it has held."""
        if self._scaler is None:
            return {}
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale. The empty state of another precision leaves it as it is."""
        if self._scaler and state:
            self._scaler.grad_scaler.load_state_dict(state)


class LossScaler:
    """One GradScaler, and the facts that it lacks: unscaled optimizers, those that stepped, skipped
    steps.

    GradScaler wants one `update()` after all steps of an iteration, which forgets all of them.
    Which step is the last isn't known before the next backward, so it is updated then. Updating
    after each step would unscale a second optimizer's gradients twice, or with another scale, when
    both share one backward.
    """

    def __init__(self, grad_scaler: GradScaler | None = None) -> None:
        self.device_type = "cuda"
        self._grad_scaler = grad_scaler
        self._scaled = False
        self._unscaled: set[int] = set()
        self._stepped: set[int] = set()

    @property
    def grad_scaler(self) -> GradScaler:
        """Made at the first use, in the process that trains: it looks for the device."""
        if self._grad_scaler is None:
            self._grad_scaler = GradScaler(self.device_type)
        return self._grad_scaler

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale."""
        # The next backward begins: only now is it known that the steps so far were all of them.
        self._update()
        self._scaled = True
        return self.grad_scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, and look for overflows; once between two
        steps.
        """
        if id(optimizer) in self._unscaled or not _has_gradients(optimizer):
            return
        self._check_order(optimizer)
        self.grad_scaler.unscale_(optimizer)
        # A JointOptimizer has unscaled those that it joins, one of which a hook may clip by itself.
        self._unscaled.update(map(id, (optimizer, *getattr(optimizer, "joined", ()))))

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer unless its gradients overflowed; return whether it stepped."""
        if not _has_gradients(optimizer):
            # GradScaler would fail an assertion; without it the optimizer has nothing to do, or
            # only its own business.
            optimizer.step()
            return True
        self._check_order(optimizer)
        stepped = _step(self.grad_scaler, optimizer)
        self._stepped.add(id(optimizer))
        return stepped

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state after all steps so far."""
        self._update()
        return self.grad_scaler.state_dict()

    def _update(self) -> None:
        if self._stepped:
            self.grad_scaler.update()
            self._stepped.clear()
            self._unscaled.clear()

    def _check_order(self, optimizer: Optimizer) -> None:
        if self._scaled and id(optimizer) not in self._stepped:
            return
        raise ConfigurationError(
            f"{type(optimizer).__name__} has gradients of a loss that wasn't scaled, or steps "
            "twice after a backward. With float16, call backward(loss) of Fabric, or "
            "manual_backward(loss) of the module, before each step; loss.backward() knows nothing "
            "of the scale."
        )


def _step(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Step the optimizer, and return True if it did so.

    The scaler doesn't say. Its scale before and after would, for a synchronization with the device
    that nothing else needs. But it reads the overflow anyway, in order to leave the step out: so a
    hook of the step has it for free. Only a fused optimizer looks on the device, and its verdict
    has to be read.
    """
    applied = []

    def note(stepped: Optimizer, *_: object) -> None:
        overflow = getattr(stepped, "found_inf", None)
        applied.append(overflow is None or not overflow.item())

    handle = optimizer.register_step_post_hook(note)
    try:
        scaler.step(optimizer)
    finally:
        handle.remove()
    return any(applied)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(
        parameter.grad is not None
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
