"""Hyperparameters whose objects a program may want in its checkpoints, as Lightning keeps them
there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from core.trainer import HasHyperparameters


class HyperparametersMixin(HasHyperparameters):
    """Remembers the arguments of `__init__`; see `core.Module.save_hyperparameters`.

    Objects among them are reported where a Trainer leaves them out, and not before.
    """

    def save_hyperparameters(
        self,
        *names: Any,
        ignore: str | Iterable[str] | None = None,
        frame: FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keep the arguments of the calling `__init__` in `self.hparams`, and give them to the
        loggers. The frame isn't needed.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The hyperparameter ", UserWarning)
            super().save_hyperparameters(*names, ignore=ignore, logger=logger)
