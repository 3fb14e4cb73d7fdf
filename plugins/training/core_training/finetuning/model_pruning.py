"""Sets weights to zero while training goes on, by torch's own pruning functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from core.checkpoint import await_copies
from core.contract import Capability, ConfigurationError
from core_training.averaging import WeightAveraging
from core_training.callbacks import Callback
from core_training.settings.callback_arguments import check_choice, refuse_capabilities

if TYPE_CHECKING:
    from core_training.trainer import Trainer

_NAME = "ModelPruning"
_GLOBAL = {"l1_unstructured": prune.L1Unstructured, "random_unstructured": prune.RandomUnstructured}
_STRUCTURED = ("ln_structured", "random_structured")
_FUNCTIONS = (*_GLOBAL, *_STRUCTURED)


class ModelPruning(Callback):
    """Sets a part of the weights to zero at the end of epochs, and keeps them there.

    Masks are computed by `torch.nn.utils.prune` on rank 0, and each adds to the last, as torch's
    do. Parameters keep their names and are plain ones: a checkpoint has zeros in the weights, and
    the masks beside them, by which a run goes on bit-equal. Gradients of pruned weights are zero
    too, and so are their averages by `EMA` and the like.

    With `use_lottery_ticket_hypothesis`, weights that are left go back to where training began:
    The Lottery Ticket Hypothesis, https://arxiv.org/abs/1803.03635
    """

    def __init__(
        self,
        pruning_fn: str | Callable[..., Any],
        parameters_to_prune: Sequence[tuple[nn.Module, str]] | None = None,
        parameter_names: Sequence[str] = ("weight", "bias"),
        use_global_unstructured: bool = True,
        amount: int | float | Callable[[int], int | float] = 0.5,
        apply_pruning: bool | Callable[[int], bool] = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = True,
        resample_parameters: bool = False,
        pruning_dim: int | None = None,
        pruning_norm: int | float | None = None,
        verbose: Literal[0, 1, 2] = 0,
        prune_on_train_epoch_end: bool = True,
    ) -> None:
        """Create the callback.

        Args:
            pruning_fn: `"l1_unstructured"`, `"random_unstructured"`, `"ln_structured"`,
                `"random_structured"`, or a function of (module, name, amount) that prunes as those
                of torch do.
            parameters_to_prune: pairs of a submodule and its parameter's name; None is all with
                `parameter_names`.
            parameter_names: those of all submodules that are pruned.
            use_global_unstructured: choose among the weights of all parameters together, not of
                each.
            amount: a fraction of the weights that are left, or a number; or a function of the
                epoch.
            apply_pruning: whether to prune at all; or a function of the epoch.
            make_pruning_permanent: known from other trainers. Weights are plain ones at any time.
            use_lottery_ticket_hypothesis: put what is left back to its first values; or a function
                of the epoch.
            resample_parameters: put it back to new random ones, by `reset_parameters` of each
                submodule.
            pruning_dim: the dimension along which structured functions prune.
            pruning_norm: the order of the norm for `"ln_structured"`.
            verbose: 1 prints how much of the whole is pruned, 2 of each parameter too; on rank 0.
            prune_on_train_epoch_end: when the epoch's training is over; False is when a validation
                is.

        Raises:
            ConfigurationError: arguments that can't be.
        """
        if not callable(pruning_fn):
            check_choice(_NAME, "pruning_fn", pruning_fn, _FUNCTIONS)
        if use_global_unstructured and pruning_fn not in _GLOBAL:
            raise ConfigurationError(
                f"{_NAME}(pruning_fn={pruning_fn!r}) prunes each parameter by itself. Pass "
                "use_global_unstructured=False."
            )
        if pruning_fn in _STRUCTURED and pruning_dim is None:
            raise ConfigurationError(
                f"{_NAME}(pruning_fn={pruning_fn!r}) needs pruning_dim, such as 0."
            )
        if pruning_fn == "ln_structured" and pruning_norm is None:
            raise ConfigurationError(
                f"{_NAME}(pruning_fn='ln_structured') needs pruning_norm, such as 2."
            )
        self.pruning_fn = pruning_fn
        self.parameters_to_prune = parameters_to_prune
        self.parameter_names = parameter_names
        self.use_global_unstructured = use_global_unstructured
        self.amount = amount
        self.apply_pruning = apply_pruning
        self.make_pruning_permanent = make_pruning_permanent
        self.use_lottery_ticket_hypothesis = use_lottery_ticket_hypothesis
        self.resample_parameters = resample_parameters
        self.pruning_dim = pruning_dim
        self.pruning_norm = pruning_norm
        self.verbose = verbose
        self.prune_on_train_epoch_end = prune_on_train_epoch_end
        self._names: list[str] = []
        self.reset_for_fit()

    def reset_for_fit(self) -> None:
        """Nothing is pruned yet."""
        self._masks: dict[str, Tensor] = {}
        self._first: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """The masks, and the first weights if they are to come back."""
        return {"masks": dict(self._masks), "first": dict(self._first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with them."""
        self._masks = dict(state["masks"])
        self._first = dict(state["first"])

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Find the parameters.

        Raises:
            UnsupportedError: the strategy has the weights in a form of its own.
            ConfigurationError: there is nothing to prune, or something that is no part of the
                module.
        """
        refuse_capabilities(
            _NAME,
            trainer.strategy,
            Capability.SHARDED_STATE | Capability.COMPILED_STEP,
            reason="sets weights to zero where they are",
            cure="Use a single device, or strategy='ddp'.",
        )
        self._names = self._find(module)

    def on_train_start(self, trainer: Trainer, module: nn.Module) -> None:
        """Keep the first weights."""
        if self.use_lottery_ticket_hypothesis and not self._first:
            self._first = {
                name: value.detach().clone() for name, value in self._own(module).items()
            }

    def on_after_backward(self, trainer: Trainer, module: nn.Module) -> None:
        """Set the gradients of pruned weights to zero."""
        for name, parameter in self._own(module).items():
            if name in self._masks and parameter.grad is not None:
                parameter.grad.mul_(self._mask(name, parameter))

    def on_train_batch_end(
        self, trainer: Trainer, module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Set pruned weights to zero again, and their averages."""
        self._apply(trainer, module)

    def on_train_epoch_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Prune, if it is time."""
        if self.prune_on_train_epoch_end:
            self._prune(trainer, module)

    def on_validation_end(self, trainer: Trainer, module: nn.Module) -> None:
        """Prune, if it is time."""
        is_in_fit = trainer.stage == "fit" and not trainer.sanity_checking
        if is_in_fit and not self.prune_on_train_epoch_end:
            self._prune(trainer, module)

    def _prune(self, trainer: Trainer, module: nn.Module) -> None:
        epoch = trainer.current_epoch
        amount = _answer(self.amount, epoch)
        if not _answer(self.apply_pruning, epoch) or not amount:
            return
        for average in _averages(trainer):
            average.restore_trained()
        own = self._own(module)
        masks = None
        if trainer.is_global_zero:
            masks = self._compute(own, amount)
        self._masks = trainer.strategy.broadcast(masks)
        if _answer(self.use_lottery_ticket_hypothesis, epoch):
            self._rewind(trainer, module, own)
        self._apply(trainer, module)
        self._print_counts(trainer)

    def _compute(self, own: dict[str, nn.Parameter], amount: int | float) -> dict[str, Tensor]:
        """The masks of torch functions, on copies that carry the last masks."""
        holders = {}
        for name, parameter in own.items():
            holders[name] = holder = nn.Module()
            holder.weight = nn.Parameter(parameter.detach().clone())
            if name in self._masks:
                prune.custom_from_mask(holder, "weight", self._masks[name].to(parameter))
        if self.use_global_unstructured:
            assert isinstance(self.pruning_fn, str)
            pairs = [(holder, "weight") for holder in holders.values()]
            prune.global_unstructured(pairs, pruning_method=_GLOBAL[self.pruning_fn], amount=amount)
        else:
            prune_one, options = self.pruning_fn, dict[str, Any]()
            if not callable(prune_one):
                prune_one = getattr(prune, prune_one)
            if self.pruning_fn in _STRUCTURED:
                options["dim"] = self.pruning_dim
            if self.pruning_fn == "ln_structured":
                options["n"] = self.pruning_norm
            for holder in holders.values():
                prune_one(holder, "weight", amount, **options)
        return {
            name: holder.get_buffer("weight_mask").bool().cpu() for name, holder in holders.items()
        }

    def _rewind(self, trainer: Trainer, module: nn.Module, own: dict[str, nn.Parameter]) -> None:
        first = self._first
        if self.resample_parameters:
            drawn = None
            if trainer.is_global_zero:
                drawn = _resampled(module, own)
            first = trainer.strategy.broadcast(drawn)
        await_copies()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(first[name])

    def _apply(self, trainer: Trainer, module: nn.Module) -> None:
        if not self._masks:
            return
        await_copies()
        with torch.no_grad():
            for name, parameter in self._own(module).items():
                parameter.mul_(self._mask(name, parameter))
        for average in _averages(trainer):
            average.apply_masks(self._masks)

    def _mask(self, name: str, parameter: Tensor) -> Tensor:
        self._masks[name] = self._masks[name].to(parameter)
        return self._masks[name]

    def _own(self, module: nn.Module) -> dict[str, nn.Parameter]:
        return {name: module.get_parameter(name) for name in self._names}

    def _find(self, module: nn.Module) -> list[str]:
        names = {id(value): name for name, value in module.named_parameters()}
        if self.parameters_to_prune is None:
            chosen = [
                name for name in names.values() if name.rpartition(".")[2] in self.parameter_names
            ]
        else:
            owned = [getattr(owner, name, None) for owner, name in self.parameters_to_prune]
            chosen = [names.get(id(parameter), "") for parameter in owned]
            if "" in chosen:
                raise ConfigurationError(
                    f"{_NAME}: {self.parameters_to_prune[chosen.index('')]} is no parameter of "
                    f"{type(module).__name__}. Expected pairs such as (module.layer, 'weight')."
                )
        if not chosen:
            raise ConfigurationError(
                f"{_NAME}: {type(module).__name__} has no parameter to prune named "
                f"{', '.join(self.parameter_names)}. Pass parameters_to_prune or parameter_names."
            )
        return chosen

    def _print_counts(self, trainer: Trainer) -> None:
        if self.verbose:
            trainer.print(f"pruned: {_share(*self._masks.values())}")
        if self.verbose > 1:
            for name, mask in self._masks.items():
                trainer.print(f"pruned of {name}: {_share(mask)}")


def _share(*masks: Tensor) -> str:
    whole = sum(mask.numel() for mask in masks)
    pruned = whole - sum(int(mask.count_nonzero()) for mask in masks)
    return f"{pruned}/{whole} ({pruned / whole:.2%})"


def _averages(trainer: Trainer) -> list[WeightAveraging]:
    return [callback for callback in trainer.callbacks if isinstance(callback, WeightAveraging)]


def _answer(given: Any, epoch: int) -> Any:
    """A value, or what a function of the epoch returns."""
    if callable(given):
        return given(epoch)
    return given


def _resampled(module: nn.Module, own: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """New first values of parameters; the module gets back what it had."""
    kept = {name: value.detach().clone() for name, value in module.state_dict().items()}
    for each in module.modules():
        reset = getattr(each, "reset_parameters", None)
        if reset is not None:
            reset()
    drawn = {name: parameter.detach().cpu().clone() for name, parameter in own.items()}
    module.load_state_dict(kept)
    return drawn
