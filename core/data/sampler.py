"""One rank's shard of the user's own sampler, with a position that doesn't depend on the number of
ranks.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from core.contract import CheckpointError
from core.data.nested_parts import find_generator, sampler_chain
from core.data.seeds import DrawingRng, mix_seed, seed_workers
from core.data.sharding import rebalance_last, shard_batches, shard_samples
from core.data.windows import weigh_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from core.data.sharding import Step
    from core.data.windows import MicroBatch

    NumBatches: TypeAlias = Callable[[], int | float]


# What needs no `DrawingRng`, or none after the first batch.
_DRAW_NOTHING = (SequentialSampler, range, list, tuple)
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class SeededIndex(NamedTuple):
    """The index of a sample, with the seed from which its augmentation is drawn."""

    index: Any
    seed: int


class ShardedSampler(Sampler[Any]):
    """Yields this rank's batches of the user's order, epoch after epoch. Used on one device too.
    Not for subclassing.

    All ranks draw the same global order from seed and epoch, which is also the order of one device.
    A user's sampler that has a generator of its own draws from that. How the order becomes batches
    stands in `core.data.sharding`.

    The call sequence, all ranks:

    1. `set_epoch(epoch)` before each epoch; when a run resumes, `load_state_dict(state)` before
       that.
    2. `iter(...)` by the loader, which runs ahead of what the user sees.
    3. `advance()` by the loop, when it takes a batch from the loader. Now `position` counts that
       batch.
    4. `state_dict()` at any time. It is the same on every rank, and loads with other numbers of
       ranks and workers.

    Attributes:
        epoch: number of the epoch that is on, from 0.
        position: samples of this epoch that the user was given, over all ranks.
        num_accumulated: batches of an accumulation window that is cut out of the order as a whole;
            None where batches are cut one by one.
        uneven: this rank's batches of the iteration that is on, of those windows whose batches
            don't weigh alike or are fewer, by their numbers from 0. It is filled as the loader
            takes them; who uses one takes it out.
        worker_generator: seeds a loader's workers, differently in each epoch and on each rank.
        seeds_samples: give the loader a `SeededIndex` in place of each of the user's own indices.
    """

    def __init__(
        self,
        order: Iterable[Any],
        *,
        batch_size: int | None,
        drop_last: bool = False,
        yields_batches: bool = True,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        repeats: bool = True,
        rebalances: bool = True,
        num_accumulated: int | None = None,
        loader_generator: torch.Generator | None = None,
    ) -> None:
        """Shard an order of samples, or of batches.

        Args:
            order: the user's sampler; or batch sampler, if `batch_size` is None.
            batch_size: samples for each rank in a step.
            drop_last: leave out a short last step.
            yields_batches: False for a loader that takes single indices and doesn't collate.
            rank: number of this shard.
            size: number of shards.
            seed: of the draws; the same on all ranks.
            repeats: where a last step doesn't have a sample for every rank, the others take one
                that another rank has too, with weight 0, so that all make the same number of steps.
                False: they end one step earlier.
            rebalances: before it comes to that, move samples from the step before to the last one.
                For who can't weigh batches.
            num_accumulated: cut accumulation windows of so many batches: the same samples on any
                number of ranks. `drop_last` then leaves out a last window that is short. See
                `uneven`.
            loader_generator: the loader's, from which it seeds workers, if it is the sampler's too.
        """
        self.order = order
        self.batch_size, self.drop_last, self.yields_batches = batch_size, drop_last, yields_batches
        self.rank, self.size, self.seed, self.repeats = rank, size, seed, repeats
        self.rebalances = rebalances and size > 1 and num_accumulated is None
        self.num_accumulated = num_accumulated
        self._window, self._num_batches = num_accumulated or 1, unlimited
        self.uneven: dict[int, MicroBatch] = {}
        self.epoch = self.position = 0
        self.seeds_samples = False
        self._lengths: tuple[int | None, int | None] = (None, None)
        """Numbers of samples or batches, as the state that was loaded last has it and now."""
        self.worker_generator = torch.Generator()
        self._generator = find_generator(order)
        self._loader_generator = loader_generator
        self._generator_state: torch.Tensor | None = None
        """The user's generator's, when this epoch was drawn; None if it wasn't yet."""
        self._generator_after: torch.Tensor | None = None
        """The user's generator's, as the state that was loaded last has it."""
        self._on_the_way: deque[tuple[int, Any]] = deque()
        """Samples over all ranks, and our own, for each batch that the loader took and the user
        wasn't given yet.
        """

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: the loader draws its workers' seed right after this call.
        if self._generator is not None:
            if self._generator_state is None:
                self._generator_state = self._generator.get_state()
            # an epoch that goes on is drawn once more
            self._generator.set_state(self._generator_state)
        self._generator_after = None
        seed = mix_seed(self.seed, self.epoch)
        seed_workers(self.worker_generator, self._loader_generator, seed, self.rank, self.size)
        self._on_the_way = deque()
        self.uneven.clear()
        num_batches, self._num_batches = self._num_batches, unlimited
        steps = self._draw(self.epoch, self.position)
        if self.rebalances:
            steps = self._rebalance(steps, num_batches)
        if self.size > 1 or self._window > 1:  # else each step is a batch of this rank's
            steps = self._weigh(steps, num_batches)
        return self._batches(steps, self._on_the_way, self.epoch, self.position)

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank.

        Raises:
            TypeError: the user's sampler has no length.
        """
        num_units = len(self.order)  # type: ignore[arg-type]  # a sampler may have a length, and torch can't say so
        if self.num_accumulated is not None and self.batch_size is not None:
            num_at_once = self.batch_size * self.size
            windows, rest = divmod(num_units, num_at_once * self.num_accumulated)
            if self.drop_last:
                rest = 0
            return windows * self.num_accumulated + -(-rest // num_at_once)
        whole, rest = divmod(num_units, self.size * (self.batch_size or 1))
        if rest == 0 or self.drop_last:
            return whole
        # A short last step comes on top: for every rank if it repeats samples or borrows some from
        # the step before, and else for the ranks that have one.
        may_borrow = self.rebalances and self.batch_size != 1 and whole > 0
        if self.repeats or may_borrow or rest > self.rank:
            whole += 1
        return whole

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at its first sample. The one that is on goes on."""
        if epoch != self.epoch:
            self.epoch, self.position, self._generator_state = epoch, 0, None
            if self._generator is not None and self._generator_after is not None:
                self._generator.set_state(self._generator_after)  # the epoch that was on is over
        for part in sampler_chain(self.order):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)

    def advance(self) -> Any:
        """Count the batch that the loop just took from the loader.

        Returns:
            Its indices, as the user's sampler gave them; one index for a loader that doesn't
            collate. None if there is no such batch.
        """
        if not self._on_the_way:
            return None
        num_samples, indices = self._on_the_way.popleft()
        self.position += num_samples
        return indices

    def set_window(self, num_accumulated: int, num_batches: NumBatches) -> None:
        """Weigh the batches of the next iteration among those of so many, the accumulation window.

        Args:
            num_accumulated: batches of a window; the first one begins with the iteration.
            num_batches: of the iteration that will be taken; asked once its first step is drawn,
                since a batch sampler may know its number only then. The last window ends there, and
                no step gives samples to one behind it.
        """
        self._window, self._num_batches = num_accumulated, num_batches

    def num_batches_given(self, *, default: int) -> int:
        """Number of this rank's batches up to the position; `default` where batches are of any
        size.
        """
        if self.batch_size is None:
            return default
        # `-(-a // b)` rounds up.
        return -(-self.position // (self.batch_size * self.size))

    @property
    def was_recut(self) -> bool:
        """True if the epoch that goes on at the position has another number of batches than `len`
        says.

        Its first part was cut into batches of another size, or for another number of ranks.
        """
        if self.batch_size is None:
            before, now = self._lengths
            return before != now
        num_samples = _length_of(self.order)
        if num_samples is None:
            return False  # nor has the loader a length
        at_once = self.batch_size * self.size
        left = max(0, num_samples - self.position)
        num_left = left // at_once
        if not self.drop_last:
            num_left = -(-left // at_once)
        return self.num_batches_given(default=0) + num_left != len(self)

    def state_dict(self) -> dict[str, Any]:
        """The position: numbers, and states of the user's generator: as this epoch was drawn, and
        now.
        """
        generator, after = self._generator_state, None
        if self._generator is not None:
            after = self._generator.get_state()
            if generator is None:
                generator = after
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "length": _length_of(self.order),
            "generator": generator,
            "generator_after": after,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position, from which the next `iter` continues.

        Raises:
            CheckpointError: `state` doesn't come from such a sampler.
        """
        missing = {"epoch", "position", "seed", "generator", "generator_after"} - state.keys()
        if missing:
            raise CheckpointError(
                f"A sampler's state has no {sorted(missing)}; it has {sorted(state)}."
            )
        if (state["generator"] is None) != (self._generator is None):
            saved, here = "a generator", "none"
            if self._generator is not None:
                saved, here = "no generator", "one"
            raise CheckpointError(
                f"The checkpoint's sampler had {saved} of its own, and {type(self.order).__name__} "
                f"has {here}: its order can't go on. Build the loader as it was when the "
                "checkpoint was written."
            )
        # First: another epoch puts the position back to 0.
        self.set_epoch(state["epoch"])
        self.position, self.seed = state["position"], state["seed"]
        self._generator_state = state["generator"]
        self._generator_after = state["generator_after"]
        self._lengths = state.get("length"), _length_of(self.order)

    def check_length(self) -> None:
        """Check that the data is as long as where the loaded state was saved: to be called if that
        is within an epoch.

        Raises:
            CheckpointError: with both numbers.
        """
        before, now = self._lengths
        if self.batch_size is not None and None not in self._lengths and before != now:
            raise CheckpointError(
                f"The checkpoint was saved within an epoch of {before} samples, and now the "
                f"training data has {now}: samples would be seen twice, or never. Build the data "
                "set as it was, or load a checkpoint of an epoch's end, after which the next epoch "
                "has all of the new data."
            )

    def _draw(self, epoch: int, position: int) -> Iterator[Step]:
        if type(self.order) in _DRAW_NOTHING:
            return self._shard(position)
        rng = DrawingRng(mix_seed(self.seed, epoch))
        with rng:
            steps = self._shard(position)
            # torch's samplers draw, or seed a generator of their own, when the first sample is
            # taken: take the first step here.
            step = next(steps, None)
        if type(self.order) in SHUFFLING:
            return chain(filter(None, [step]), steps)
        # The user's own sampler may draw for each sample: the context is entered for each step, and
        # left while the loader and the model are at work.
        return self._draw_each(rng, step, steps)

    @staticmethod
    def _draw_each(rng: DrawingRng, step: Step | None, steps: Iterator[Step]) -> Iterator[Step]:
        while step is not None:
            yield step
            with rng:
                step = next(steps, None)

    def _shard(self, position: int) -> Iterator[Step]:
        options: dict[str, Any] = {
            "size": self.size,
            "position": position,
            "drop_last": self.drop_last,
        }
        if self.batch_size is None:
            return shard_batches(self.order, **options)
        options["num_accumulated"] = self.num_accumulated or 1
        return shard_samples(self.order, self.batch_size, **options)

    def _rebalance(self, steps: Iterator[Step], num_batches: NumBatches) -> Iterator[Step]:
        wanted = num_batches()
        if wanted != math.inf:
            steps = islice(steps, int(wanted))
        yield from rebalance_last(steps, self.size)

    def _weigh(self, steps: Iterator[Step], num_batches: NumBatches) -> Iterator[Step]:
        """The same steps. Notes what uneven batches weigh; for that, each window is read as a
        whole.
        """
        number, left = 0, num_batches()
        while left:
            window = list(islice(steps, int(min(self._window, left))))
            if not window:
                return
            sizes = [[len(shard) for shard in step] for step in window]
            weigh_window(self.uneven, number, sizes, self.rank, self._window)
            number, left = number + len(window), left - len(window)
            yield from window
        yield from steps  # a loader may run ahead

    def _batches(
        self,
        steps: Iterator[Step],
        on_the_way: deque[tuple[int, object]],
        epoch: int,
        position: int,
    ) -> Iterator[Any]:
        for step in steps:
            # `first` is the number of this rank's first sample in the global order, where the
            # ranks' shards stand in a row.
            shard, first = step[self.rank], position + sum(map(len, step[: self.rank]))
            # No sample is left for this rank: it takes one that another rank has too, or ends here.
            if not shard:
                if not self.repeats:
                    return
                samples = list(chain.from_iterable(step))
                number = self.rank % len(samples)
                shard, first = [samples[number]], position + number
            num_samples = sum(map(len, step))
            given: list[Any] = shard
            if self.seeds_samples:
                # By the sample's number in the global order, and its index: own sharding counts
                # alike on all ranks.
                given = []
                for number, index in enumerate(shard, first):
                    own = 0
                    if isinstance(index, int):
                        own = index
                    seed = mix_seed(self.seed, epoch, number, own)
                    given.append(SeededIndex(index, seed))
            position += num_samples
            if not self.yields_batches:
                shard, given = shard[0], given[0]
            on_the_way.append((num_samples, shard))
            yield given


def unlimited() -> float:
    """The number of batches that are taken where nothing limits it."""
    return math.inf


def _length_of(order: Iterable[object]) -> int | None:
    """The number of samples, or batches, of an order; None if it doesn't know."""
    try:
        return len(order)  # type: ignore[arg-type]  # a sampler may have a length, and torch can't say so
    except (TypeError, NotImplementedError):
        return None
