"""The state of a communication hook: for checkpoints, and as new for the next run.

Without it, a run with PowerSGD that goes on from a checkpoint would lose the rest of each
compression, and one with post-local SGD would begin its warm-up again.
"""

from __future__ import annotations

import copy
import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from core import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

_PLAIN = (
    "iter",
    "total_numel_before_compression",
    "total_numel_after_compression",
    "next_stats_report",
)
_BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")
_PATIENCE = 2  # torch cuts its buckets anew after the first backward


class HookState:
    """The state that a DDP hook keeps, in plain values. It is torch's own, or has `state_dict` and
    its opposite.

    PowerSGD keeps tensors by bucket. A wrapper begins with other buckets than it has from the
    second backward on, so that a run that goes on exchanges its first gradients whole, and
    compresses again once the buckets are those that were saved.

    Args:
        state: of the hook; one that is neither is left alone.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._buckets: dict[int, list[str]] = {}
        self._saved: Mapping[str, Any] = {}
        self._num_waits = 0
        self._at_first = copy.deepcopy(self.state_dict())

    @property
    def is_by_bucket(self) -> bool:
        """True for PowerSGD."""
        return isinstance(self._state, PowerSGDState)

    def state_dict(self) -> dict[str, Any] | None:
        """This rank's; None if nothing is known of it."""
        state = self._state
        kind = type(self._state).__name__
        if isinstance(state, PostLocalSGDState):
            return {"kind": kind, "iter": state.iter}
        if isinstance(state, PowerSGDState):
            return (
                {"kind": kind, **self._saved}
                if self._saved
                else {"kind": kind, **self._power_sgd_state()}
            )
        method = getattr(state, "state_dict", None)
        return {"kind": kind, "state": method()} if callable(method) else None

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            CheckpointError: it is the state of another hook.
        """
        state = self._state
        kind = type(self._state).__name__
        if saved["kind"] != kind:
            raise CheckpointError(
                f"The checkpoint has the state of a communication hook with {saved['kind']}, and "
                f"this strategy has ddp_comm_state={kind}(...). Pass the hook and state that it "
                "was trained with."
            )
        if isinstance(state, PowerSGDState):
            self._load_power_sgd_state(saved)
        elif isinstance(state, PostLocalSGDState):
            state.iter = saved["iter"]
        else:
            state.load_state_dict(saved["state"])

    def restart(self) -> None:
        """Restore what the state was when it was given."""
        self._buckets = {}
        self._saved = {}
        if self._at_first is not None:
            self.load_state_dict(copy.deepcopy(self._at_first))
            self._saved = {}

    def by_bucket(self, hook: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
        """PowerSGD's hook, which knows the parameters of each bucket by name, and waits for those
        that were saved.
        """
        names = {id(parameter): name for name, parameter in module.named_parameters()}

        @functools.wraps(hook)
        def compress(state: PowerSGDState, bucket: Any) -> Any:
            index, parameters = (
                bucket.index(),
                [names[id(parameter)] for parameter in bucket.parameters()],
            )
            if self._saved and not self._begins_again(bucket, parameters):
                return default_hooks.allreduce_hook(state.process_group, bucket)
            self._buckets[index] = parameters
            if state.iter >= state.start_powerSGD_iter:
                _refuse_several(bucket)
            return hook(state, bucket)

        return compress

    def _begins_again(self, bucket: Any, parameters: list[str]) -> bool:
        """Restore the saved tensors if this bucket is as it was. True to compress."""
        if self._saved["buckets"].get(str(bucket.index())) == parameters:
            device = bucket.buffer().device
            for name in _BY_BUCKET:
                getattr(self._state, name).update(
                    {int(key): one.to(device) for key, one in self._saved[name].items()}
                )
            self._saved = {}
            return True
        self._num_waits += bucket.is_last()
        if self._num_waits > _PATIENCE:
            message = (
                "DDP's buckets aren't those of the checkpoint: PowerSGD begins without what "
                "it had left out."
            )
            warnings.warn(message, stacklevel=2)
            self._saved = {}
            return True
        return False

    def _power_sgd_state(self) -> dict[str, Any]:
        state = self._state
        kind, key, *rest = state.rng.get_state()
        return {
            **{name: getattr(state, name) for name in _PLAIN},
            **{
                name: {str(index): value for index, value in getattr(state, name).items()}
                for name in _BY_BUCKET
            },
            "buckets": {str(index): names for index, names in self._buckets.items()},
            "rng": [kind, torch.from_numpy(key.astype("int64")), *rest],
        }

    def _load_power_sgd_state(self, saved: Mapping[str, Any]) -> None:
        state = self._state
        for name in _PLAIN:
            setattr(state, name, saved[name])
        for name in _BY_BUCKET:
            getattr(state, name).clear()
        kind, key, *rest = saved["rng"]
        state.rng.set_state((kind, key.numpy().astype("uint32"), *rest))
        self._num_waits = 0
        self._saved = (
            {name: value for name, value in saved.items() if name != "kind"}
            if saved["buckets"]
            else {}
        )


def _refuse_several(bucket: Any) -> None:
    if dist.get_backend() == "gloo" and not (bucket.index() == 0 and bucket.is_last()):
        raise ConfigurationError(
            "PowerSGD over gloo would wait for ever: torch's hook does so where DDP has more than "
            "one bucket. Pass a bucket_cap_mb that holds all gradients, or use NCCL."
        )
