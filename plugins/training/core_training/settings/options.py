"""The arguments of `Trainer`, checked before anything else happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from core.contract import ConfigurationError, GradientClipping
from core_training.settings.duration import parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from core.contract import ClippingAlgorithm

Amount: TypeAlias = int | float | None
"""A number of batches, a fraction of them (a float), or None for all."""

NumBatches: TypeAlias = int | float
"""Batches; infinite if their number is unknown."""

MAX_EPOCHS = 1000

_LEAST = {
    "accumulate_grad_batches": 1,
    "log_every_n_steps": 1,
    "min_epochs": 0,
    "min_steps": 0,
    "reload_dataloaders_every_n_epochs": 0,
    "max_steps": -1,
    "num_sanity_val_steps": -1,
}
"""The least that each option may be."""

_AMOUNTS = (
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "val_check_interval",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """The user's options for the loops: the Trainer's arguments of these names; see `core.Trainer`
    for each.

    Attributes:
        val_check_time: `val_check_interval`, if it is a time.
        clipping: `gradient_clip_val` and `gradient_clip_algorithm`.
    """

    max_epochs: int | None
    min_epochs: int
    max_steps: int
    min_steps: int
    max_time: timedelta | None
    limit_train_batches: Amount
    limit_val_batches: Amount
    limit_test_batches: Amount
    limit_predict_batches: Amount
    overfit_batches: NumBatches
    val_check_interval: Amount
    val_check_time: timedelta | None
    reload_dataloaders_every_n_epochs: int
    check_val_every_n_epoch: int | None
    num_sanity_val_steps: int
    log_every_n_steps: int
    accumulate_grad_batches: int
    global_batch_size: int | None
    clipping: GradientClipping | None
    deterministic: bool | Literal["warn"] | None
    benchmark: bool | None
    detect_anomaly: bool
    terminate_on_nan: bool
    inference_mode: bool
    sync_batchnorm: bool
    use_distributed_sampler: bool
    seed_samples: bool
    keep_on_device: bool
    save_only: Literal["all", "trainable"]

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _check_int(name, getattr(self, name), least=least)
        self._check_global_batch()
        if self.max_epochs is not None:
            _check_int("max_epochs", self.max_epochs, least=-1)
        for name in _AMOUNTS:
            check_amount(name, getattr(self, name))
        self._check_validation()
        if self.save_only not in ("all", "trainable"):
            raise ConfigurationError(
                f"save_only={self.save_only!r}: expected 'all' or 'trainable'."
            )

    def _check_global_batch(self) -> None:
        if self.global_batch_size is None:
            return
        _check_int("global_batch_size", self.global_batch_size, least=1)
        if self.accumulate_grad_batches != 1:
            raise ConfigurationError(
                f"global_batch_size={self.global_batch_size} and "
                f"accumulate_grad_batches={self.accumulate_grad_batches} both say how many samples "
                "make a step. Leave one of them out: the window follows from the first."
            )

    def _check_validation(self) -> None:
        interval, every = self.val_check_interval, self.check_val_every_n_epoch
        if interval == 0:
            raise ConfigurationError(
                f"val_check_interval={interval!r}: expected at least 1, or a fraction above 0.0. "
                "Pass limit_val_batches=0 not to validate."
            )
        if every is not None:
            _check_int("check_val_every_n_epoch", every, least=1)
        elif self.val_check_time is None and (isinstance(interval, float) or interval is None):
            raise ConfigurationError(
                "check_val_every_n_epoch=None counts batches over epochs, and "
                f"val_check_interval={interval!r} isn't a number of them. Pass an int, such as "
                "val_check_interval=1000, or a time."
            )


def make_clipping(value: Any, algorithm: ClippingAlgorithm | None) -> GradientClipping | None:
    """The clipping that `gradient_clip_val` and `gradient_clip_algorithm` describe together.

    Raises:
        ConfigurationError: a negative value, or an unknown algorithm.
    """
    if algorithm not in (None, "norm", "value"):
        raise ConfigurationError(
            f"gradient_clip_algorithm={algorithm!r}: expected 'norm' or 'value'."
        )
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigurationError(
            f"gradient_clip_val={value!r}: expected a positive number, or None not to clip."
        )
    return GradientClipping(float(value), algorithm or "norm")


def separate_val_check(
    value: int | float | timedelta | Mapping[str, int] | str | None,
) -> tuple[Amount, timedelta | None]:
    """Separate an interval in batches from one in time.

    Raises:
        ConfigurationError: a time of no known form.
    """
    if value is None or isinstance(value, int | float):
        return value, None
    duration = parse_duration("val_check_interval", value)
    if not duration:
        raise ConfigurationError(f"val_check_interval={value!r}: expected a time above 0.")
    return None, duration


def limit_epochs(max_epochs: int | None, max_steps: int, max_time: timedelta | None) -> int | None:
    """The limit in epochs; 1000 if the user gave no limit at all."""
    if max_epochs is None and max_steps == -1 and max_time is None:
        return MAX_EPOCHS
    if max_epochs == -1:
        return None
    return max_epochs


def check_amount(name: str, value: Any) -> None:
    """Refuse what is neither a number of batches nor a fraction of them.

    Raises:
        ConfigurationError: with both forms.
    """
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < 0 or (isinstance(value, float) and value > 1.0):
        raise ConfigurationError(
            f"{name}={value!r}: expected a number of batches (int, 0 or more), a fraction of them "
            "(float, 0.0 to 1.0), or None for all."
        )


def is_whole(value: Amount) -> bool:
    """True for an amount of all that there are, whose number may be unknown: None, or the float
    1.0. 1 is one batch.
    """
    return value is None or (isinstance(value, float) and value == 1.0)


def resolve_limit(value: Amount, available: NumBatches, *, name: str) -> NumBatches:
    """The number of batches that an amount of the available ones is; both may be infinite.

    Raises:
        ConfigurationError: a fraction of an unknown number, or a fraction so small that nothing is
            left.
    """
    if value is None or is_whole(value) or not available:
        return available
    if isinstance(value, int):
        return min(value, available)
    if not value:
        return 0
    if available == float("inf"):
        raise ConfigurationError(
            f"{name}={value!r} is a fraction, and the data set doesn't know its length. Give a "
            "number of batches (int)."
        )
    taken = int(available * value)
    if not taken:
        raise ConfigurationError(
            f"{name}={value!r} of {available} batches is less than one. Use at least "
            f"{1 / available:.2g}, or an int."
        )
    return taken


def _check_int(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        unlimited = ", or -1 for no limit" if least == -1 else ""
        raise ConfigurationError(
            f"{name}={value!r}: expected an integer of at least {max(least, 0)}{unlimited}."
        )
