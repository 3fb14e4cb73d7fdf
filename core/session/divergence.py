"""Ranks that part: what they have alike is compared by sums of bits, after the first steps and then
seldom.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core.contract.difference import Difference
from core.contract.errors import ReplicasDifferError
from core.session.digests import digest_of
from core.session.module_tree import canonical_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from core.contract.world import World

_EVERY_STEPS = 1024
_PARAMETER, _BUFFER, _IN_PARTS = "the parameter", "the buffer", "parts of either"
_CAUSES = {
    _PARAMETER: (
        "Usual causes: the loss comes from the module that was made, or from one of its layers, "
        "and not from a call of the module that was set up (model, optimizer = "
        "fabric.setup(model, optimizer), then model(x)); loss.backward() in manual optimization, "
        "for self.manual_backward(loss); something that is changed on some ranks only. If nothing "
        "of it is so, memory or a device of a machine may be damaged."
    ),
    _BUFFER: (
        "It follows each rank's own batches, and a checkpoint has that of rank 0. Compute it from "
        "those of all ranks, as by load = self.trainer.strategy.reduce(load, "
        'reduce_op="sum"), with Fabric fabric.all_reduce; or register it with persistent=False, '
        "if each rank is to have its own and no checkpoint."
    ),
    "": (
        "Compute it from the same numbers on all ranks: from no rank's own loss, and not from its "
        "number."
    ),
}


class RankComparison:
    """One comparison of what ranks have alike. Its sums are on the way when it is made, and may be
    read later.
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        parts: Sequence[tuple[object, Mapping[str, Tensor]]],
        step: int,
    ) -> None:
        """All ranks. Send the sums of bits.

        Args:
            world: the ranks.
            device: of this rank.
            parts: as many on each rank: a key of plain values, and what all ranks with the same key
                have alike, by what it is called.
            step: optimizer steps so far.
        """
        self._world = world
        self._step = step
        self._names = [[*tensors] for _, tensors in parts]
        self._digests = [_stacked(map(digest_of, tensors.values()), device) for _, tensors in parts]
        keys = []
        for key, _ in parts:
            digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
            keys.append(torch.tensor(int.from_bytes(digest, signed=True)))
        rows = _stacked([*keys, *map(digest_of, self._digests)], device).view(2, -1)
        self._rows = world.all_gather(rows)  # (ranks, 2, parts)
        self._copied = None
        if device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._rows = self._rows.to("cpu", non_blocking=True)
            self._copied.record()

    def difference(self) -> Difference | None:
        """All ranks. The first difference; None if there is none. Only then do they communicate
        again.
        """
        if self._copied is not None:
            self._copied.synchronize()
        for part in range(len(self._names)):
            by_key = defaultdict[int, dict[int, int]](dict)
            for rank, (key, total) in enumerate(self._rows[:, :, part].tolist()):
                by_key[key][rank] = total
            for totals in by_key.values():
                [(common, count)] = Counter(totals.values()).most_common(1)
                if count == len(totals):
                    continue
                unlike, has_majority = [*totals], 2 * count > len(totals)
                if has_majority:
                    unlike = [rank for rank, total in totals.items() if total != common]
                tensor = self._first_unlike(part, [*totals])
                return Difference(self._step, tuple(unlike), has_majority, tensor)
        return None

    def _first_unlike(self, part: int, ranks: Sequence[int]) -> str:
        # Of ranks that were compared a step ago, one may have ended since.
        absent = self._world.absent_ranks("what differs")
        if absent:
            return f"unknown, since these ranks have gone on: {', '.join(map(str, absent))}"
        gathered = self._world.gather_objects((self._names[part], self._digests[part].tolist()))
        name = None
        if gathered is not None:
            names = [*gathered[ranks[0]][0], "one that not all ranks have"]
            columns = zip(*(gathered[rank][1] for rank in ranks), strict=False)
            alike = takewhile(lambda column: len(set(column)) == 1, columns)
            name = names[len(list(alike))]
        return str(self._world.broadcast(name))


class Alike:
    """Compares what a strategy's ranks keep alike, as `Strategy.replicas_of` says, by the steps of
    their optimizers.
    """

    def __init__(self, session: Any) -> None:  # a Session, whose module imports this one
        """Begin with no step of the session's optimizers."""
        self._session = session
        self._num_steps = 0
        self._steps: dict[Optimizer, int] = {}
        self._running: RankComparison | None = None

    def watch(self, optimizer: Optimizer) -> Callable[[], None]:
        """Count the steps of an optimizer, however they are called. Returns what undoes it."""
        self._steps[optimizer] = 0
        return optimizer.register_step_post_hook(lambda stepped, *_: self.stepped(stepped)).remove

    def stepped(self, optimizer: Optimizer) -> None:
        """All ranks, after a step. Compare, if it is time; read what was compared one step ago.

        Raises:
            ReplicasDifferError: ranks differ, or have made other numbers of steps.
        """
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self._num_steps = step = self._num_steps + 1
        if self._running is not None:
            self._read(self._running)
        if step & (step - 1) and (step < _EVERY_STEPS or step % _EVERY_STEPS):
            return
        strategy = self._session.strategy
        device = strategy.root_device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return  # nothing would be computed
        if not self._session.compares_ranks or strategy.replicas_of() is None:
            return
        # A collective would meet another one of a rank that has left out the step.
        absent = strategy.absent_ranks(f"optimizer step {step}")
        if absent:
            raise ReplicasDifferError(
                f"Rank {strategy.global_rank} has made {step} optimizer steps, and these ranks "
                f"haven't come to that: {', '.join(map(str, absent))}. All make the same steps "
                f"under {type(strategy).__name__}: let no rank decide alone to skip one, and give "
                "each the same number of batches."
            )
        self._running = RankComparison(strategy, device, self._parts(), step)
        if device.type == "cpu":
            self._read(self._running)

    def _read(self, comparison: RankComparison) -> None:
        self._running = None
        found = comparison.difference()
        if found is not None:
            kind = next(kind for kind in _CAUSES if found.tensor.startswith(kind))
            name = type(self._session.strategy).__name__
            raise ReplicasDifferError(
                f"{found} {name} keeps it alike on all ranks. {_CAUSES[kind]}", found
            )

    def _parts(self) -> list[tuple[object, Mapping[str, Tensor]]]:
        strategy = self._session.strategy
        handles = self._session.handles
        numbers = dict(_numbers(strategy.optimizers, [*self._steps.values()]))
        keys: dict[str, list[object]] = {_PARAMETER: [], _BUFFER: [], _IN_PARTS: []}
        found: dict[str, dict[str, Tensor]] = {row: {} for row in keys}
        for index, handle in enumerate(handles):
            for kind, name, tensor in _saved_tensors(handle.module):
                own: Any = tensor
                group, row, place = strategy.replicas_of(tensor, name, handle.module), kind, None
                if hasattr(own, "placements"):
                    own, row, place = own.to_local(), _IN_PARTS, _place(own)
                is_plain = type(own) in (Tensor, nn.Parameter) and own.layout == torch.strided
                if group is not None and is_plain and not own.is_meta:
                    keys[row].append((name, group, place))
                    if len(handles) > 1:
                        name = f"{index}.{name}"
                    found[row][f"{kind} {name!r}"] = own
        if self._session.buffers_stayed:
            keys[_BUFFER].append(strategy.global_rank)
        return [([*numbers], numbers), *zip(keys.values(), found.values(), strict=True)]


def running_statistics(module: nn.Module) -> Iterator[str]:
    """Names of the buffers that may follow each rank's own batches: those of batch norms that ranks
    don't share.
    """
    for prefix, part in module.named_modules():
        if hasattr(part, "track_running_stats") and not isinstance(part, nn.SyncBatchNorm):
            yield from (
                f"{prefix}.{name}".lstrip(".") for name, _ in part.named_buffers(recurse=False)
            )


def _saved_tensors(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Parameters, and buffers that a checkpoint has, by canonical names."""
    for name, parameter in module.named_parameters():
        yield _PARAMETER, canonical_name(name), parameter
    own = set(running_statistics(module))
    for path, part in module.named_modules():
        for last, buffer in part.named_buffers(recurse=False):
            name = f"{path}.{last}".lstrip(".")
            if last not in part._non_persistent_buffers_set and name not in own:
                yield _BUFFER, canonical_name(name), buffer


def _numbers(optimizers: Sequence[Any], steps: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Learning rates and other numbers of the optimizers' groups, and the steps that they have
    made.
    """
    yield "the number of each optimizer's steps", torch.tensor(steps)
    for number, optimizer in enumerate(optimizers):
        for key in sorted({key for group in optimizer.param_groups for key in group}):
            values = [group.get(key) for group in optimizer.param_groups]
            if all(isinstance(value, int | float | Tensor) for value in values):
                flat = [torch.as_tensor(each, dtype=torch.float64).reshape(-1) for each in values]
                joined = torch.cat([each.cpu() for each in flat])
                yield f"{key!r} of optimizer {number}, {type(optimizer).__name__}", joined


def _place(tensor: Any) -> list[object]:
    """Where this rank's part of a DTensor lies; ranks that have a copy of it are in the same
    place.
    """
    mesh = tensor.device_mesh
    place: list[object] = [mesh.mesh_dim_names]
    for placed, at in zip(tensor.placements, mesh.get_coordinate() or (), strict=False):
        if placed.is_replicate():
            at = None
        place.append(at)
    return place


def _stacked(digests: Iterable[Tensor], device: torch.device) -> Tensor:
    nothing = torch.zeros((), dtype=torch.int64)
    return torch.stack([each.to(device, non_blocking=True) for each in (nothing, *digests)])[1:]
