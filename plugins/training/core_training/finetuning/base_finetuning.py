"""Parts of a module that are frozen at first, and trained later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from core_training.callbacks import Callback
from core_training.settings.callback_arguments import refuse_capabilities
from core_training.state.finished_fit import OWN_OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.optim import Optimizer

    from core_training.trainer import Trainer

_RATES_OF_GROUPS = ("initial_lr", "max_lr", "min_lr")


class BaseFinetuning(Callback):
    """Freezes parts of a module before training, and unfreezes them when an epoch begins. Meant to
    be subclassed.

    The call sequence, all ranks:

    1. `freeze_before_training(module)`, before the strategy sets the module up.
    2. `finetune_function(module, epoch, optimizer)`, when an epoch begins, for each optimizer. What
       it unfreezes is trained from this epoch on: a strategy that looks once at what requires
       gradients is asked to look again (`Strategy.refresh_modules`). All ranks have to unfreeze the
       same.

    A run that resumes has the same parameters frozen, and the same parameter groups, as the one
    that was saved.
    """

    def freeze_before_training(self, pl_module: nn.Module) -> None:
        """Override it: call `self.freeze` on parts of the module."""
        raise NotImplementedError

    def finetune_function(self, pl_module: nn.Module, epoch: int, optimizer: Optimizer) -> None:
        """Override it: call `self.unfreeze_and_add_param_group` when it is time.

        Args:
            pl_module: the user's own.
            epoch: that begins, from 0.
            optimizer: one of the module's.
        """
        raise NotImplementedError

    # what subclasses call -------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(modules: nn.Module | Iterable[nn.Module]) -> list[nn.Module]:
        """The parts of modules that have parameters of their own, or no parts."""
        if isinstance(modules, nn.ModuleDict):
            modules = modules.values()
        return [
            layer
            for layer in _layers(modules)
            if not list(layer.children()) or list(layer.parameters(recurse=False))
        ]

    @staticmethod
    def freeze(modules: nn.Module | Iterable[nn.Module], train_bn: bool = True) -> None:
        """Stop training parameters.

        Args:
            modules: with all their parts.
            train_bn: go on training batch norms; False stops their statistics too.
        """
        for layer in _layers(modules):
            _train(layer, isinstance(layer, BatchNorm) and train_bn)

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Stop training a module's own parameters, and not those of its parts; of a batch norm the
        statistics too.
        """
        _train(module, False)

    @staticmethod
    def make_trainable(modules: nn.Module | Iterable[nn.Module]) -> None:
        """Train parameters, and statistics of batch norms."""
        for layer in _layers(modules):
            _train(layer, True)

    @staticmethod
    def filter_params(
        modules: nn.Module | Iterable[nn.Module], train_bn: bool = True, requires_grad: bool = True
    ) -> Iterator[nn.Parameter]:
        """Parameters that require gradients, or those that don't.

        Args:
            modules: with all their parts.
            train_bn: include those of batch norms.
            requires_grad: which ones.
        """
        for layer in _layers(modules):
            if train_bn or not isinstance(layer, BatchNorm):
                for parameter in layer.parameters(recurse=False):
                    if parameter.requires_grad == requires_grad:
                        yield parameter

    @staticmethod
    def filter_on_optimizer(
        optimizer: Optimizer, params: Iterable[nn.Parameter]
    ) -> list[nn.Parameter]:
        """The parameters that no group of an optimizer has."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [parameter for parameter in params if id(parameter) not in held]

    def unfreeze_and_add_param_group(
        self,
        modules: nn.Module | Iterable[nn.Module],
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Train parameters, in a group of their own if no group of the optimizer has them.

        Args:
            modules: with all their parts.
            optimizer: of the module.
            lr: learning rate of the group; None is that of the first group, divided by
                `initial_denom_lr`.
            initial_denom_lr: see `lr`.
            train_bn: include batch norms.
        """
        for layer in _layers(modules):
            if train_bn or not isinstance(layer, BatchNorm):
                _train(layer, True)
        trained = dict.fromkeys(self.filter_params(modules, train_bn))
        found = self.filter_on_optimizer(optimizer, trained)
        if lr is None:
            lr = optimizer.param_groups[0]["lr"] / initial_denom_lr
        if found:
            self._add_group(optimizer, found, float(lr))

    # what the Trainer calls -----------------------------------------------------------------------

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse optimizers that take no parameters later.

        Raises:
            UnsupportedError: the strategy keeps them in shards, an engine or a compiled program.
        """
        refuse_capabilities(
            type(self).__name__,
            trainer.strategy,
            OWN_OPTIMIZERS,
            reason="adds parameters to an optimizer while training runs",
            cure="Train in two calls of fit instead, or use one device or 'ddp'.",
        )

    def setup(self, trainer: Trainer, module: nn.Module, stage: str) -> None:
        """Freeze, before the strategy wraps the module and optimizers are made."""
        if stage == "fit":
            self._schedulers: list[Any] = []
            self.freeze_before_training(module)

    def on_train_epoch_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Ask the subclass."""
        self._schedulers = _schedulers(trainer)
        for optimizer in trainer.strategy.optimizers:
            self.finetune_function(module, trainer.current_epoch, optimizer)
        self._schedulers = []

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Keep what is frozen, and the parameters of each group by name."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        checkpoint["groups"] = [
            [[names[id(each)] for each in group["params"]] for group in optimizer.param_groups]
            for optimizer in trainer.strategy.optimizers
        ]
        checkpoint["frozen"] = [
            name for name, parameter in module.named_parameters() if not parameter.requires_grad
        ]
        checkpoint["still"] = [
            name
            for name, part in module.named_modules()
            if isinstance(part, BatchNorm) and not part.track_running_stats
        ]

    def before_restore(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """All ranks, before optimizers are restored. Freeze and group parameters as they were."""
        if not checkpoint:
            return
        self._schedulers = _schedulers(trainer)
        parameters = dict(module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name not in checkpoint["frozen"])
        for name, part in module.named_modules():
            if isinstance(part, BatchNorm):
                part.track_running_stats = name not in checkpoint["still"]
        for optimizer, groups in zip(
            trainer.strategy.optimizers, checkpoint["groups"], strict=True
        ):
            for group in groups[len(optimizer.param_groups) :]:
                # until the optimizer's own state comes
                rate = float(optimizer.param_groups[0]["lr"])
                self._add_group(optimizer, [parameters[name] for name in group], rate)
        self._schedulers = []

    def _store(self, *_: Any) -> None:
        """Called by subclasses that programs for Lightning have: checkpoints find the groups by
        themselves.
        """

    def _add_group(self, optimizer: Optimizer, parameters: list[nn.Parameter], rate: float) -> None:
        first = optimizer.param_groups[0]
        ratio = 1.0
        if first["lr"]:
            ratio = rate / float(first["lr"])
        group = {"params": parameters, "lr": rate}
        # What schedulers keep in groups, and in lists of their own: a group that lacks it would be
        # an error there.
        for name in first.keys() - optimizer.defaults.keys() - {"params", "param_names"}:
            group[name] = first[name]
            if name in _RATES_OF_GROUPS:
                group[name] = first[name] * ratio
        optimizer.add_param_group(group)
        for scheduler in self._schedulers:
            if getattr(scheduler, "optimizer", None) is optimizer:
                for values, scale in (("base_lrs", ratio), ("max_lrs", ratio), ("min_lrs", 1.0)):
                    held = getattr(scheduler, values, None)
                    if held:
                        held.append(held[0] * scale)
                functions = getattr(scheduler, "lr_lambdas", None)
                if functions:
                    functions.append(functions[0])


def _schedulers(trainer: Trainer) -> list[Any]:
    """All schedulers, and those that they are made of."""
    found = [item.scheduler for item in trainer.strategy.lr_schedulers]
    for scheduler in found:  # which grows
        found.extend(getattr(scheduler, "_schedulers", ()))
    return found


def _layers(modules: nn.Module | Iterable[nn.Module]) -> Iterator[nn.Module]:
    if isinstance(modules, nn.Module):
        modules = [modules]
    for module in modules:
        yield from module.modules()


def _train(layer: nn.Module, trains: bool) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter.requires_grad_(trains)
    if isinstance(layer, BatchNorm):
        layer.track_running_stats = trains
