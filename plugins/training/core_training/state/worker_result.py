"""The result of a stage in other processes, which is copied back into the caller's objects."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core.session import canonical_name, from_canonical, to_canonical

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.contract import Strategy
    from core_training.run import Run


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The result of a stage in rank 0's process, with weights, metrics, counters and states.
    Tensors are on the CPU.

    Attributes:
        formats: what training may change of parameters and buffers besides their values and their
            device: dtype, and whether they require gradients.
    """

    result: object
    weights: dict[str, object]
    metrics: dict[str, Tensor]
    progress: dict[str, Any]
    callbacks: dict[str, dict[str, Any]]
    loggers: list[dict[str, object]]
    should_stop: bool
    formats: dict[str, tuple[torch.dtype, bool]]

    @classmethod
    def of(cls, run: Run, result: Any) -> WorkerResult:
        """All ranks, in the worker, before teardown."""
        weights = run.strategy.get_module_state_dict(run.module, layout="full")
        for name, value in weights.items():
            if isinstance(value, Tensor):
                weights[name] = value.detach().cpu()
        return cls(
            result=result,
            weights=weights,
            metrics=run.logged.newest(),
            progress=run.progress.state_dict(),
            callbacks={each.state_key: each.state_dict() or {} for each in run.callbacks},
            loggers=[logger.state_dict() for logger in run.stage_loggers],
            should_stop=run.should_stop,
            formats={},
        )

    def after_teardown(self, module: nn.Module) -> WorkerResult:
        """The outcome with the formats of the module's tensors. In the worker, once the module is
        given back.
        """
        tensors = _tensors(module).items()
        return replace(
            self, formats={name: (own.dtype, own.requires_grad) for name, own in tensors}
        )

    def restore(self, run: Run) -> None:
        """Copy everything into the caller's own run, module and callbacks. Called in the caller's
        process.
        """
        # Parts that the workers have built in this hook have weights, too.
        assert run.trainer is not None
        with _whole_models(run.strategy):
            run.trainer.configure_model()
        # Restore formats before the weights: torch would round weights to the dtype of the tensors
        # that are there.
        for name, own in _tensors(run.module).items():
            dtype, requires_grad = self.formats.get(name, (own.dtype, own.requires_grad))
            if own.dtype != dtype:
                own.data = own.data.to(dtype)
            if own.is_leaf and own.requires_grad != requires_grad:
                own.requires_grad_(requires_grad)
            if own.is_meta and name in self.weights:
                # It can't be written to. It stays the same object, so that what is tied stays so.
                values = torch.empty_like(own, device="cpu")
                if isinstance(own, nn.Parameter):
                    values = nn.Parameter(values, own.requires_grad)
                torch.utils.swap_tensors(own, values)
        run.module.load_state_dict(from_canonical(run.module, self.weights))
        run.progress.load_state_dict(self.progress)
        run.should_stop = self.should_stop
        run.logged.take(self.metrics)
        for callback in run.callbacks:
            callback.load_state_dict(self.callbacks[callback.state_key])
        for logger, state in zip(run.stage_loggers, self.loggers, strict=True):
            logger.load_state_dict(state)


@contextmanager
def _whole_models(strategy: Strategy) -> Iterator[None]:
    """A context in which models that ask the strategy where to be built are built whole, and
    here.
    """

    @contextmanager
    def init_context(*, empty: bool = False) -> Iterator[None]:
        with torch.device("cpu"), strategy.precision_plugin.init_context() or nullcontext():
            yield

    vars(strategy)["init_context"] = init_context
    try:
        yield
    finally:
        del vars(strategy)["init_context"]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by canonical names; buffers too that no state has."""
    state = to_canonical(module.state_dict(keep_vars=True))
    buffers = {canonical_name(name): buffer for name, buffer in module.named_buffers()}
    return {
        name: value for name, value in {**buffers, **state}.items() if isinstance(value, Tensor)
    }
