"""The data of a run: this rank's loaders, how many of their batches, and where to go on."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from core.contract import Capability, CheckpointError, ConfigurationError
from core.data import (
    LoaderSharder,
    divide_global_batch,
    shuffles,
    without_shuffling,
)
from core.fabric import draw_alike
from core_training.settings.options import resolve_limit
from core_training.settings.warn_at import warn_caller
from core_training.stage_data.collection import is_collection, leaves_of
from core_training.stage_data.combined import CombinedLoader, CombinedResumableLoader
from core_training.stage_data.evaluation_loaders import (
    UNKNOWN,
    StageLoader,
    knows_length,
    length_of,
)
from core_training.stage_data.resumable_loader import ResumableLoader
from core_training.stage_data.sample_seeds import seed_samples
from core_training.stage_data.sources import PREDICTION, TEST, TRAIN, VALIDATION
from core_training.stage_data.validation_interval import check_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core.contract import Strategy
    from core.data import GlobalBatch
    from core_training.settings.options import Amount, NumBatches, TrainerOptions
    from core_training.stage_data.sources import Role, Source

_WEIGHS_NOTHING = Capability.COMPILED_STEP | Capability.OWNS_STEP
"""Strategies that don't read `TrainingStep.weight`."""


class Loaders:
    """The loaders of one call of `fit`, `validate`, `test` or `predict`.

    Made in the main process, from sources that aren't asked yet; `setup` does that on all ranks.

    Attributes:
        train: what is iterated over in training; None before `setup`.
        validation, test, predict: one for each loader.
        num_train_batches: batches of an epoch on this rank, as its loader says when it begins;
            infinite if unknown.
        knows_length: True if the training loader's own length can be relied upon.
        global_batch: the division of `global_batch_size`, from `setup` on; None without it.
    """

    train: Any = None
    num_train_batches: NumBatches = 0
    knows_length: bool = True
    global_batch: GlobalBatch | None = None
    _strategy: Strategy
    _has_asked: bool = False
    _asked_in_epoch: int = 0
    _has_warned_of_empty: bool = False
    _resumable: ResumableLoader | CombinedResumableLoader | None = None
    _restored: dict[str, object] | None = None

    def __init__(self, options: TrainerOptions, sources: Sequence[Source]) -> None:
        self._options = options
        self._sources = {source.role: source for source in sources}
        self._evaluated: dict[Role, list[StageLoader]] = {}
        self.validation: list[StageLoader] = []
        self.test: list[StageLoader] = []
        self.predict: list[StageLoader] = []

    def setup(self, strategy: Strategy) -> None:
        """All ranks. Ask for the loaders, shard them, hand them to the strategy, and count their
        batches. Idempotent.

        Raises:
            ConfigurationError: a loader is empty, or ranks would make different numbers of training
                steps.
        """
        if not self._has_asked:
            self._strategy, self._has_asked = strategy, True
            self._ask()

    def ask_again(self) -> None:
        """All ranks. Make all loaders anew; a position that was restored holds for the new ones."""
        self._ask()
        if self._restored is not None:
            self.position.load_state_dict(self._restored)

    def _ask(self) -> None:
        draw_apart = draw_alike(self._strategy)
        # New shards, so that loaders that are asked for again have the seeds of the first ones.
        self._sharder = LoaderSharder(self._strategy)
        self.test = self._make_evaluation(TEST)
        self.predict = self._make_evaluation(PREDICTION)
        self.validation = self._make_evaluation(VALIDATION)
        # Last, since how often to validate is checked against the validation loaders.
        if TRAIN in self._sources:
            self._make_train(self._sources[TRAIN])
        draw_apart()

    def end_workers(self) -> None:
        """End workers that persist: garbage collection, which finds them in a cycle, would wait for
        each for 5 s.
        """
        for loader in chain.from_iterable(self._evaluated.values()):
            for resumable in loader.resumables:
                resumable.end_workers()
        if self._resumable is not None:
            for resumable in self._resumable.resumables:
                resumable.end_workers()

    # making ---------------------------------------------------------------------------------------

    def _make_train(self, source: Source) -> None:
        loaders = source.ask()
        if loaders is None:
            owner = type(source.owner).__name__
            raise ConfigurationError(
                f"{owner}.train_dataloader() returned None; expected a loader."
            )
        if is_collection(loaders):
            loaders = CombinedLoader(loaders, "max_size_cycle")
        self._divide(loaders)
        if isinstance(loaders, CombinedLoader):
            resumables = [self._make_resumable(leaf, TRAIN) for _, leaf in loaders.leaves]
            self._resumable = CombinedResumableLoader(loaders, resumables)
        else:
            self._resumable = self._make_resumable(loaders, TRAIN, rebalances=not self.weighs)
        self.train = self._resumable.loader
        self.knows_length = length_of(self.train) != UNKNOWN and knows_length(loaders)
        # Compared on all ranks, since one with more batches would wait in its step for the others.
        self._check_train()
        check_interval(self._options, self)

    def count_train(self) -> NumBatches:
        """Ask the training loader for its number of batches, which may be another one in each
        epoch.
        """
        self.num_train_batches = resolve_limit(
            self._limit(TRAIN), length_of(self.train), name=TRAIN.limit
        )
        return self.num_train_batches

    def _divide(self, loader: Any) -> None:
        wanted, strategy = self._options.global_batch_size, self._strategy
        if wanted is None:
            return
        if isinstance(loader, CombinedLoader):
            raise ConfigurationError(
                f"global_batch_size={wanted} counts the samples of one training loader, and there "
                f"are {len(loader.leaves)}. Leave it out, and say accumulate_grad_batches=..., or "
                "train on one loader."
            )
        shards = self._options.use_distributed_sampler
        self.global_batch = divide_global_batch(
            wanted, loader, num_shards=strategy.data_parallel_size, shards=shards
        )

    def _check_train(self) -> None:
        counts = self._gather(self.count_train())
        if min(counts) == 0:
            raise ConfigurationError(self._describe_empty(TRAIN))
        if min(counts) != max(counts):
            uneven = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
            raise ConfigurationError(
                f"The training loader has a different number of batches on each rank: {uneven}. "
                "The ranks with more would wait for the others forever. Give all of them the same, "
                f"or pass limit_train_batches={min(counts)}."
            )

    def _make_evaluation(self, role: Role) -> list[StageLoader]:
        self._evaluated[role] = []
        source, loaders = self._sources.get(role), None
        if source is not None and self._limit(role) != 0:
            # A limit of 0 turns the stage off: its hook isn't even asked.
            loaders = source.ask()
        if loaders is None:
            return []
        # Read together they are one loader; one after the other they are several, each with its own
        # index.
        if isinstance(loaders, CombinedLoader) and loaders.mode != "sequential":
            resumables = [self._make_resumable(leaf, role) for _, leaf in loaders.leaves]
            combined = CombinedResumableLoader(loaders, resumables)
            self._evaluated[role] = [StageLoader(combined, resumables, {})]
            return self._count(role)
        if isinstance(loaders, CombinedLoader):
            loaders = loaders.loaders
        for _, leaf in leaves_of(loaders):
            made = self._make_resumable(leaf, role, joins=self._forwards_together)
            self._evaluated[role].append(StageLoader(made.loader, [made], made.uneven))
        return self._count(role)

    @property
    def _forwards_together(self) -> bool:
        """True if the weights are gathered in evaluation, so that a rank must not end before the
        others.
        """
        capabilities = self._strategy.capabilities
        return (
            Capability.COLLECTIVES in capabilities and Capability.INFERENCE_MODE not in capabilities
        )

    def _count(self, role: Role) -> list[StageLoader]:
        """Shares may differ by a batch: a fraction is of the longest, and only a loader that is
        empty for all is.
        """
        made = self._evaluated[role]
        of_ranks = self._gather([length_of(each.loader) for each in made])
        longest = [max(lengths) for lengths in zip(*of_ranks, strict=True)]
        if 0 in longest or not longest:
            self._check_empty(role)
        if not any(longest):
            return []
        counted = []
        for index, loader in enumerate(made):
            lengths = {of_rank[index] for of_rank in of_ranks}
            agrees = len(lengths) == 1 and knows_length(loader.loader)
            if self._forwards_together and not agrees and len(of_ranks) > 1:
                loader = replace(loader, together=self._strategy)
            counted.append(loader.counted(self._limit(role), role.limit, longest[index]))
        return counted

    @property
    def weighs(self) -> bool:
        """True if training can weigh batches."""
        return not self._strategy.capabilities & _WEIGHS_NOTHING

    def _make_resumable(self, source: object, role: Role, **sharding: bool) -> ResumableLoader:
        """Shard one loader, and hand it to the strategy."""
        options, trains = self._options, role is TRAIN
        if shuffles(source):
            source = self._handle_shuffling(source, role)
        if options.use_distributed_sampler:
            global_batch = self.global_batch if trains else None
            source = self._sharder.shard(source, role.stage, global_batch, **sharding)
        if options.seed_samples and trains:
            source = seed_samples(source)
        return ResumableLoader(self._strategy.setup_dataloader(source, role.stage), source)

    def _handle_shuffling(self, loader: Any, role: Role) -> object:
        """Replace a shuffling loader where the order has to be fixed, and warn of one in
        evaluation.
        """
        warns = self._strategy.is_global_zero
        if self._options.overfit_batches and role in (TRAIN, VALIDATION):
            if warns:
                warn_caller(
                    f"overfit_batches={self._options.overfit_batches!r} needs the same batches in "
                    f"each epoch: the {role.name} loader doesn't shuffle any more.",
                )
            return without_shuffling(loader)
        if warns and role is not TRAIN:
            warn_caller(
                f"The {role.name} loader shuffles. Is it the training loader? Pass DataLoader(..., "
                "shuffle=False).",
            )
        return loader

    def _limit(self, role: Role) -> Amount:
        options = self._options
        if options.overfit_batches and role in (TRAIN, VALIDATION):
            return options.overfit_batches
        limit: Amount = getattr(options, role.limit)
        return limit

    def _gather(self, value: object) -> list[Any]:
        """All ranks. The answers of all ranks."""
        strategy = self._strategy
        if not strategy.session.has_peers:
            return [value]
        return list(strategy.broadcast(strategy.gather_objects(value)))

    def _check_empty(self, role: Role) -> None:
        """Warn of empty validation data, without which training goes on, and refuse any other empty
        loader.

        Raises:
            ConfigurationError: in any other stage.
        """
        if role is not VALIDATION or TRAIN not in self._sources:
            raise ConfigurationError(self._describe_empty(role))
        if self._strategy.is_global_zero and not self._has_warned_of_empty:
            warn_caller(f"{self._describe_empty(role)} It is left out of validation.")
        self._has_warned_of_empty = True

    def _describe_empty(self, role: Role) -> str:
        limit = self._limit(role)
        if role is TRAIN and limit == 0:
            return (
                "limit_train_batches=0 leaves nothing to train on. To validate only, call "
                "trainer.validate(module, loader); the training loader gives no batch, or "
                "limit_train_batches=0 left none."
            )
        limited = "" if limit is None else f", or {role.limit}={limit!r} left none"
        return (
            f"The {role.name} loader gives no batch: its data set is empty, or drop_last "
            f"dropped all of it{limited}."
        )

    # position -------------------------------------------------------------------------------------

    @property
    def position(self) -> ResumableLoader | CombinedResumableLoader:
        """The training data, whose position can be saved and restored."""
        assert self._resumable is not None
        return self._resumable

    def begin_epoch(self, epoch: int) -> None:
        """All ranks, before the training loader is opened. Asks for new loaders in the epochs in
        which they are due.
        """
        # New ones are due in epochs 0, n, 2n...; a resumed run may begin after the one in which
        # they were.
        every = self._options.reload_dataloaders_every_n_epochs
        if every and self._asked_in_epoch != epoch - epoch % every:
            self._asked_in_epoch = epoch - epoch % every
            self.ask_again()
        self._restored = None
        self.position.begin(epoch)
        self._check_train()
        if self._evaluated[VALIDATION]:
            self.validation = self._count(VALIDATION)

    def open_train(
        self, num_accumulated: int = 1, num_batches: Callable[[], NumBatches] = lambda: UNKNOWN
    ) -> Iterator[Any]:
        """All ranks. The epoch's batches from the position on.

        Args:
            num_accumulated: batches of an accumulation window.
            num_batches: that will be taken at most; asked once the order is drawn.
        """
        if not (self.position.is_sharded and self.weighs):
            num_accumulated = 1
        for resumable in self.position.resumables:
            resumable.set_window(num_accumulated, num_batches)
        return self.position.open()

    @property
    def windowed_loader(self) -> ResumableLoader | None:
        """The training data, if its order is cut into whole accumulation windows."""
        loader = self._resumable
        if isinstance(loader, ResumableLoader) and loader.num_accumulated is not None:
            return loader
        return None

    @property
    def is_combined(self) -> bool:
        """True if training reads several loaders, whose batches have no common weight."""
        return isinstance(self._resumable, CombinedResumableLoader)

    @property
    def reads_again(self) -> bool:
        """True if a run goes on within an epoch by reading its batches again; not where several
        loaders are read.
        """
        return self.position.reads_again

    @property
    def was_recut(self) -> bool:
        """True if what is left of a restored epoch has another number of batches than
        `num_train_batches` says.
        """
        return any(resumable.was_recut for resumable in self.position.resumables)

    @property
    def has_position(self) -> bool:
        """True if this process has read the training data: if launched ranks have, it hasn't."""
        return self._resumable is not None

    def state_dict(self, num_batches: int) -> dict[str, Any]:
        """All ranks. The training data's position after so many batches of this epoch on this
        rank.
        """
        resumable = self.position
        resumable.count(num_batches)
        state = resumable.state_dict()
        # Of several loaders each counts what it has given, on a rank that has run out less than on
        # the others.
        counts_alone = (
            self.is_combined and not self.knows_length and self._strategy.session.has_peers
        )
        differs = resumable.differs_by_rank or counts_alone
        if differs:
            return {"train_by_rank": self._gather(state)}
        return {"train": state}

    def load_state_dict(self, state: dict[str, Any], num_batches: int) -> int:
        """All ranks. Go on from a position; the loader begins there.

        Args:
            state: from `state_dict`.
            num_batches: of the epoch, as the rank that saved it counted.

        Returns:
            What that is for this rank, whose batches may be larger shards.

        Raises:
            CheckpointError: it was saved by other loaders, or by another number of ranks where that
                matters.
        """
        resumable, saved = self.position, self._state_of_rank(state)
        if saved is None:
            return num_batches
        resumable.load_state_dict(saved)
        self._restored = saved
        if not num_batches:
            return num_batches
        for each in resumable.resumables:
            each.check_length()
        return resumable.num_batches if "train" in state else num_batches

    def _state_of_rank(self, state: dict[str, Any]) -> dict[str, object] | None:
        strategy = self._strategy
        if "train_by_rank" not in state:
            return state.get("train")
        states = state["train_by_rank"]
        if len(states) != strategy.world_size:
            raise CheckpointError(
                f"The training loader keeps a state of its own, which was saved on {len(states)} "
                f"ranks and can't be divided among {strategy.world_size}. Go on with {len(states)} "
                "ranks, or use a map-style data set."
            )
        found: dict[str, Any] = states[strategy.global_rank]
        return found
