"""What a run in other processes has changed, on its way back to the caller's objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.contract import module_tree

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rank 0's result, weights, metrics, counters and callback states. Picklable; tensors are on the CPU."""

    result: Any
    weights: dict[str, Any]
    metrics: dict[str, Tensor]
    progress: dict[str, Any]
    callbacks: dict[str, dict[str, Any]]
    loggers: list[dict[str, Any]]
    should_stop: bool

    @classmethod
    def of(cls, trainer: Trainer, result: Any) -> Outcome:
        """All ranks, in the worker, before teardown."""
        weights = trainer.strategy.get_module_state_dict(trainer.module, layout="full")
        return cls(
            result=result,
            weights={
                name: value.detach().cpu() if isinstance(value, Tensor) else value for name, value in weights.items()
            },
            metrics=trainer.callback_metrics,
            progress=trainer.progress.state_dict(),
            callbacks={callback.state_key: callback.state_dict() for callback in trainer.callbacks},
            loggers=[logger.state_dict() for logger in trainer.loggers],
            should_stop=trainer.should_stop,
        )

    def restore(self, trainer: Trainer) -> None:
        """In the caller's process: put everything into the caller's own trainer, module and callbacks."""
        trainer.configure_model()
        trainer.module.load_state_dict(module_tree.from_canonical(trainer.module, self.weights))
        trainer.progress.load_state_dict(self.progress)
        trainer.should_stop = self.should_stop
        trainer.take_metrics(self.metrics)
        for callback in trainer.callbacks:
            callback.load_state_dict(self.callbacks[callback.state_key])
        for logger, state in zip(trainer.loggers, self.loggers, strict=True):
            logger.load_state_dict(state)
