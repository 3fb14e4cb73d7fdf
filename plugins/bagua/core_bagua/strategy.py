"""The algorithms of Bagua, on torch.distributed: what ranks tell each other, and when, instead of
an all-reduce.

Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2021.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from core import Capability, CheckpointError, ConfigurationError, did_you_mean
from core.strategies import (
    LeftOutParameters,
    ParallelStrategy,
    refuse_sparse_layers,
    refuse_unlike_modules,
    set_within,
)
from core_bagua.algorithm import Algorithm
from core_bagua.asynchronous import AsyncModelAverage
from core_bagua.centralized import ByteGrad, GradientAllReduce
from core_bagua.decentralized import Decentralized, LowPrecisionDecentralized
from core_bagua.qadam import QAdam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

Name = Literal[
    "gradient_allreduce",
    "bytegrad",
    "qadam",
    "decentralized",
    "low_precision_decentralized",
    "async",
]

ALGORITHMS: dict[str, type[Algorithm]] = dict(
    zip(
        get_args(Name),
        (
            GradientAllReduce,
            ByteGrad,
            QAdam,
            Decentralized,
            LowPrecisionDecentralized,
            AsyncModelAverage,
        ),
        strict=True,
    )
)


class BaguaStrategy(ParallelStrategy):
    """Data parallelism by one of Bagua's algorithms."""

    def __init__(
        self,
        algorithm: Name = "gradient_allreduce",
        *given: Any,
        flatten: bool = True,
        average: bool | None = None,
        peer_selection_mode: Literal["all", "shift_one"] | None = None,
        communication_interval: int | None = None,
        sync_interval_ms: int | None = None,
        warmup_steps: int | None = None,
        **parts: Any,
    ) -> None:
        """Choose an algorithm, and its options.

        Args:
            algorithm: `"gradient_allreduce"`, as DistributedDataParallel; `"bytegrad"`, gradients
                in eight bits; `"qadam"`, momenta in eight bits; `"decentralized"`, weights averaged
                with peers; `"low_precision_decentralized"`, on a ring, in eight bits; `"async"`,
                weights averaged meanwhile.
            given: an accelerator, a list of devices and other parts, without their names.
            flatten: exchange all tensors of a format in one message, and not each in one.
            average: of `gradient_allreduce` and `bytegrad`: the mean of gradients (the default), or
                their sum.
            peer_selection_mode: of `decentralized`: `"all"` (the default), or `"shift_one"`, one
                other rank a step.
            communication_interval: of `decentralized` and `low_precision_decentralized`: number of
                steps from one exchange to the next, 1 by default.
            sync_interval_ms: of `async`: time from one average to the next, in milliseconds, 500 by
                default.
            warmup_steps: of `async`: number of steps in which gradients are averaged instead, 0 by
                default.
            parts: of `ParallelStrategy` (`start_method`, `process_group_backend`, `timeout`,
                `parallel_devices`, ...).

        Raises:
            ConfigurationError: an algorithm that isn't known, or an option that it doesn't take.
        """
        super().__init__(*given, **parts)
        if algorithm not in ALGORITHMS:
            raise ConfigurationError(
                f"BaguaStrategy(algorithm={algorithm!r}): expected one of "
                f"{', '.join(map(repr, ALGORITHMS))}."
                f"{did_you_mean(str(algorithm), ALGORITHMS)}"
            )
        options: dict[str, Any] = {
            "average": average,
            "peer_selection_mode": peer_selection_mode,
            "communication_interval": communication_interval,
            "sync_interval_ms": sync_interval_ms,
            "warmup_steps": warmup_steps,
        }
        self.algorithm = algorithm
        self._options = {name: value for name, value in options.items() if value is not None} | {
            "flatten": flatten
        }
        self._refuse_options_of_others()
        self._left_out = LeftOutParameters(self)
        self._restart()

    def _refuse_options_of_others(self) -> None:
        known = [field.name for field in fields(ALGORITHMS[self.algorithm]) if field.init]
        if unknown := [name for name in self._options if name not in known]:
            takers = [
                name
                for name, kind in ALGORITHMS.items()
                if unknown[0] in {field.name for field in fields(kind)}
            ]
            more = (
                " It is an option of core_bagua.QAdamOptimizer."
                if self.algorithm == "qadam"
                else ""
            )
            raise ConfigurationError(
                f"BaguaStrategy(algorithm={self.algorithm!r}) has no option {unknown[0]!r}, which "
                f"is one of {', '.join(map(repr, takers))}; it has "
                f"{', '.join(map(repr, known))}.{more}"
            )

    def _restart(self) -> None:
        self._algorithm = ALGORITHMS[self.algorithm](**self._options)
        self._exchanges = type(self._algorithm).after_backward is not Algorithm.after_backward
        self._syncs, self._is_apart = True, False

    @property
    def capabilities(self) -> Capability:
        """Those of every parallel strategy, and what the algorithm adds and lacks. Only a mean can
        be weighted.
        """
        own = (
            super().capabilities & ~Capability.WEIGHTED_LOSSES | self._algorithm.adds
        ) & ~self._algorithm.lacks
        return own & ~Capability.WEIGHTED_LOSSES if self._options.get("average") is False else own

    def check(self) -> None:
        """Refuse a number of processes that the algorithm can't have, and a scaled loss where it
        would do harm.

        Raises:
            ConfigurationError: with what to do.
        """
        super().check()
        if problem := self._algorithm.problem(self.world_size):
            raise problem
        if self.precision_plugin.formats.scales_loss and not self._algorithm.takes_scaled:
            raise ConfigurationError(
                f"precision={self.precision_plugin.name!r} scales gradients, by another number now "
                f"and then, and BaguaStrategy(algorithm={self.algorithm!r}) keeps a part of them "
                "from one step to the next, or skips steps on all ranks only. Use "
                "precision='bf16-mixed', or algorithm='gradient_allreduce'."
            )

    def setup_module(self, module: nn.Module) -> nn.Module:
        """All ranks. Convert and move the module, and begin with the weights and buffers of rank 0.

        Raises:
            ModuleError: the ranks have built different modules, or a layer gives sparse gradients.
        """
        refuse_sparse_layers(self, module)
        refuse_unlike_modules(self, module)
        super().setup_module(module)
        if self.world_size > 1:
            self._send_from_first([*module.parameters(), *module.buffers()])
        return self.model

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """All ranks. The optimizer as it is."""
        self._algorithm.set_up(self, optimizer)
        return optimizer

    def backward(
        self, loss: Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """All ranks. Compute gradients, and exchange them if the algorithm does, unless
        `no_backward_sync` is on.

        Raises:
            ModuleError: the loss leaves out parameters here, and not on other ranks.
        """
        super().backward(loss, module, manual=manual, **kwargs)
        if self._exchanges and self._syncs and self.world_size > 1:
            trained = {name: own for name, own in self._parameters().items() if own.requires_grad}
            self._left_out.check([name for name, own in trained.items() if own.grad is None])
            self._algorithm.after_backward(
                {name: own.grad for name, own in trained.items() if own.grad is not None}
            )

    def no_backward_sync(
        self, module: nn.Module, enabled: bool = True
    ) -> AbstractContextManager[Any]:
        """All ranks. A context around forward and backward in which gradients stay local."""
        return set_within(self, "_syncs", self._syncs and not enabled)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """All ranks. Step, with what the algorithm does to weights before and after."""
        if self.world_size == 1:
            return super().optimizer_step(optimizer, closure)
        weights = self._weights() if self._algorithm.drifts else {}
        self._algorithm.before_step(weights)
        updated = super().optimizer_step(optimizer, closure)
        self._algorithm.after_step(weights)
        self._is_apart = True
        return updated

    def synchronize_model(self) -> None:
        """All ranks. Make one model of all: the mean of weights and moments that drift, the buffers
        of rank 0.
        """
        if not self._is_apart:
            return
        self._is_apart = False
        if self._algorithm.drifts:
            self._algorithm.finish(self._weights())
            self._average([*self._weights().values(), *self._moments()])
        self._send_from_first(
            [buffer for handle in self.session.handles for buffer in handle.module.buffers()]
        )

    def rank_state_dict(self) -> dict[str, Any] | None:
        """All ranks. The algorithm's state on this rank."""
        state = self._algorithm.state_dict()
        return state and {"algorithm": self.algorithm, **state}

    def load_rank_state_dict(self, state: Mapping[str, Any]) -> None:
        """All ranks. Restore it.

        Raises:
            CheckpointError: another algorithm has saved it.
        """
        if state.get("algorithm") != self.algorithm:
            raise CheckpointError(
                f"The checkpoint has what each rank kept for algorithm={state.get('algorithm')!r}, "
                f"and this is BaguaStrategy(algorithm={self.algorithm!r}). Go on with that "
                "algorithm, or load weights only."
            )
        self._algorithm.load_state_dict(state)

    def release(self) -> None:
        """All ranks; idempotent. Forget modules, optimizers and what the algorithm keeps."""
        super().release()
        self._left_out.forget()
        self._restart()

    def _parameters(self) -> dict[str, nn.Parameter]:
        handles = self.session.handles
        if len(handles) == 1:
            return dict(handles[0].module.named_parameters())
        named = ((index, handle.module.named_parameters()) for index, handle in enumerate(handles))
        return {f"{index}.{name}": own for index, parameters in named for name, own in parameters}

    def _weights(self) -> dict[str, Tensor]:
        return {name: own.data for name, own in self._parameters().items() if own.requires_grad}

    def _moments(self) -> Iterator[Tensor]:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    entry = optimizer.state.get(parameter, {})
                    moments = (
                        value
                        for key, value in entry.items()
                        if key != "step" and isinstance(value, Tensor)
                    )
                    yield from (value for value in moments if value.is_floating_point())

    def _average(self, tensors: list[Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(self.reduce(tensor))

    def _send_from_first(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            message = tensor.detach().contiguous()
            dist.broadcast(message, src=0)
            tensor.data.copy_(message)
