"""A pretrained backbone that is frozen at first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from core.contract import ConfigurationError, ModuleError
from core_training.callbacks import check_int
from core_training.finetuning.base_finetuning import BaseFinetuning

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from core_training.trainer import Trainer

_NAME = "BackboneFinetuning"


def multiplicative(epoch: int) -> float:
    """Doubles the learning rate of a backbone in each epoch."""
    return 2.0


class BackboneFinetuning(BaseFinetuning):
    """Trains the rest of a module first, and from some epoch on its attribute `backbone` too,
    slowly at first.

    The backbone has a parameter group of its own, whose learning rate is multiplied in each epoch,
    until it is that of the first group. `configure_optimizers` gets a module with a frozen
    backbone: leave its parameters out there, by
    `filter(lambda p: p.requires_grad, self.parameters())`; those that an optimizer has already keep
    their group.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 0.1,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        """Create the callback.

        Args:
            unfreeze_backbone_at_epoch: the first epoch in which the backbone is trained, from 0.
            lambda_func: of the epoch; the factor of the backbone's learning rate in the epochs
                after that.
            backbone_initial_ratio_lr: the backbone's first learning rate as a part of the first
                group's.
            backbone_initial_lr: the rate itself; comes before the ratio.
            should_align: never exceed the first group's rate.
            initial_denom_lr: not used where either of the above gives the rate, as one always does.
            train_bn: train batch norms of the backbone while it is frozen.
            verbose: print both rates in each epoch, on rank 0.
            rounding: digits that are printed.

        Raises:
            ConfigurationError: arguments that can't be.
        """
        at, meaning = unfreeze_backbone_at_epoch, "the number of an epoch, from 0"
        check_int(_NAME, "unfreeze_backbone_at_epoch", at, least=0, meaning=meaning)
        rate = backbone_initial_lr
        if rate is None:
            rate = backbone_initial_ratio_lr
        if rate <= 0:
            raise ConfigurationError(
                f"{_NAME}: the backbone's first learning rate is {rate!r}; expected more than 0."
            )
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.verbose = verbose
        self.rounding = rounding
        self.previous_backbone_lr: float | None = None
        """The backbone's learning rate at the beginning of this epoch; None while it is frozen."""

    def state_dict(self) -> dict[str, Any]:
        """The backbone's learning rate."""
        return {"previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        self.previous_backbone_lr = state["previous_backbone_lr"]

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse a module without a backbone.

        Raises:
            ModuleError: it has none.
            UnsupportedError: the strategy's optimizers take no parameters later.
        """
        super().check_fit(trainer, module)
        if not isinstance(getattr(module, "backbone", None), nn.Module):
            raise ModuleError(
                f"{_NAME} trains the attribute `backbone`, and {type(module).__name__} has none "
                "that is a module. Name the pretrained part so, or subclass BaseFinetuning."
            )

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Freeze the backbone."""
        if stage == "fit":
            self.previous_backbone_lr = None
        super().setup(trainer, module, stage)

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze the backbone."""
        self.freeze(pl_module.backbone, train_bn=self.train_bn)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Unfreeze the backbone, or set its rate, and print that."""
        super().on_train_epoch_start(trainer, module)
        if self.verbose and self.previous_backbone_lr is not None:
            rate = float(trainer.strategy.optimizers[0].param_groups[0]["lr"])
            own = round(self.previous_backbone_lr, self.rounding)
            trainer.print(f"learning rate: {round(rate, self.rounding)}, backbone: {own}")

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the backbone when it is time, and raise its rate afterwards."""
        rate = float(optimizer.param_groups[0]["lr"])
        if self.previous_backbone_lr is not None:
            self.previous_backbone_lr *= self.lambda_func(epoch + 1)
            if self.should_align:
                self.previous_backbone_lr = min(self.previous_backbone_lr, rate)
            group = optimizer.param_groups[-1]
            own = {id(parameter) for parameter in pl_module.backbone.parameters()}
            if own.issuperset(map(id, group["params"])):
                group["lr"] = self.previous_backbone_lr
        elif epoch >= self.unfreeze_backbone_at_epoch:
            self.previous_backbone_lr = self.backbone_initial_lr
            if self.previous_backbone_lr is None:
                self.previous_backbone_lr = rate * self.backbone_initial_ratio_lr
            self.unfreeze_and_add_param_group(
                pl_module.backbone, optimizer, self.previous_backbone_lr
            )
