"""Finds a learning rate before training begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError
from core_training.callbacks import Callback
from core_training.settings.callback_arguments import check_choice, check_int
from core_training.tuning.attributes import find_attribute, write_attribute
from core_training.tuning.learning_rate_curve import LearningRateCurve
from core_training.tuning.learning_rate_search import LearningRateSearch

if TYPE_CHECKING:
    from torch import nn

    from core_training.loops.fit_call import FitCall
    from core_training.trainer import Trainer

_NAME = "LearningRateFinder"


class LearningRateFinder(Callback):
    """Trains a copy of the module with growing learning rates, and takes the one at which the loss
    falls most steeply.

    The search runs when `fit` begins. The rate is written to the attribute `lr` or `learning_rate`
    of the module, or of its `hparams`, from which `configure_optimizers` makes the optimizer:
    training is then bit-equal to one that was started with it. Other parameter groups keep their
    ratio to the first one.

    A run that resumes doesn't search, and has the rate that it was begun with.

    Cyclical Learning Rates for Training Neural Networks, https://arxiv.org/abs/1506.01186
    """

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> None:
        """Create the callback.

        Args:
            min_lr: the first rate.
            max_lr: the last rate.
            num_training_steps: optimizer steps, each with another rate.
            mode: whether rates grow by a factor or by a summand.
            early_stop_threshold: after ten steps, stop when the smoothed loss is more than so many
                times its best since then; None doesn't.
            update_attr: write the result to the module; without it, it is in `optimal_lr` only.
            attr_name: of the module's attribute; "" is `lr` or `learning_rate`.

        Raises:
            ConfigurationError: arguments that can't be.
        """
        if not 0 < min_lr < max_lr:
            raise ConfigurationError(
                f"{_NAME}(min_lr={min_lr!r}, max_lr={max_lr!r}): expected 0 < min_lr < max_lr."
            )
        meaning = "a number of steps, from 2"
        check_int(_NAME, "num_training_steps", num_training_steps, least=2, meaning=meaning)
        check_choice(_NAME, "mode", mode, ("exponential", "linear"))
        self.min_lr = min_lr
        self.max_lr = max_lr
        self.num_training_steps = num_training_steps
        self.mode = mode
        self.early_stop_threshold = early_stop_threshold
        self.update_attr = update_attr
        self.attr_name = attr_name
        self.optimal_lr: LearningRateCurve | None = None
        """The curve of the last search, with `suggestion()` and `plot()`."""
        self.learning_rate: float | None = None
        """The rate that was written to the module."""

    def state_dict(self) -> dict[str, Any]:
        """The rate that was found."""
        return {"learning_rate": self.learning_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result."""
        self.learning_rate = state["learning_rate"]

    def on_load_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Give the module the rate of the run that goes on."""
        rate = checkpoint.get("learning_rate")
        if rate is not None:
            write_attribute([module], self._attribute(module), rate)

    def on_save_checkpoint(
        self, trainer: Trainer, module: nn.Module, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the rate for it."""
        checkpoint["learning_rate"] = self.learning_rate

    def check_fit(self, trainer: Trainer, module: nn.Module) -> None:
        """Refuse what can't be searched for.

        Raises:
            ConfigurationError: no automatic optimization, or no attribute for the result.
            UnsupportedError: the strategy's steps or parameters are its own.
        """
        trainer.check_copied_fit(_NAME, module)
        if self.update_attr:
            self._attribute(module)

    def before_fit(self, trainer: Trainer, call: FitCall) -> None:
        """Search, write the result to the module, and say so on rank 0."""
        curve = self.search(trainer, call)
        if self.learning_rate is not None:
            trainer.print(
                f"{_NAME} has set {self._attribute(call.module)} to {self.learning_rate:.3g}, "
                f"after {len(curve.results['lr'])} steps of a copy."
            )

    def search(self, trainer: Trainer, call: FitCall) -> LearningRateCurve:
        """Search. The module gets the rate if `update_attr` says so."""
        curve = LearningRateCurve(self.mode, self.min_lr, self.max_lr, self.num_training_steps)
        search = LearningRateSearch(curve, self.early_stop_threshold)
        trainer.fit_on_copies(call, search, max_steps=curve.num_training)
        self.adopt(curve, call)
        return curve

    def adopt(self, curve: LearningRateCurve, call: FitCall) -> None:
        """Keep a curve, and give the module the rate that it suggests, if `update_attr` says so."""
        self.optimal_lr = curve
        self.learning_rate = None
        if self.update_attr:
            self.learning_rate = curve.suggestion()
        if self.learning_rate is not None:
            write_attribute([call.module], self._attribute(call.module), self.learning_rate)

    def _attribute(self, module: nn.Module) -> str:
        names = ["lr", "learning_rate"]
        if self.attr_name:
            names = [self.attr_name]
        return find_attribute(_NAME, [module], names)
