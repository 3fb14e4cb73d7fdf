"""The comparison of a step's loss for a whole batch with those for its microbatches, before the
first step.
"""

from __future__ import annotations

import copy
import random
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from core import CoreError, ModuleError
from core.data import size_of
from core_parallel.microbatches import batches, pieces
from core_parallel.microbatches.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from core_parallel.communication.point_to_point import Line
    from core_parallel.pipeline.chain import Chain, Computed
    from core_parallel.pipeline.draws import Seeds

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}


def copied(module: nn.Module, chain: Chain) -> nn.Module:
    """A copy of the user's module whose changes don't count: it has the same parts and parameters,
    and logs nothing.
    """
    kept = [*module.parameters(), *module.buffers(), chain]
    kept += [part for part in chain.layout.module.modules() if part is not module]
    try:
        clone = copy.deepcopy(module, {id(one): one for one in kept})
    except Exception as error:
        warnings.warn(
            f"{type(module).__name__} can't be copied ({error}), so that training_step isn't tried "
            "out before the first step: that its loss for a batch is the mean of those for its "
            "microbatches is believed.",
            stacklevel=2,
        )
        return module
    if hasattr(module, "log"):
        vars(clone)["log"] = lambda *_, **__: None
        clone.trainer = module.trainer
    return clone


class Trial:
    """A step of a module whose counters are then as before. Something else than the model answers
    in it.

    Args:
        module: the user's, or a copy.
        step: of that module, for a batch.
    """

    def __init__(self, module: nn.Module, step: Callable[[Any], Any]) -> None:
        self._module, self._step = module, step
        self._versions: dict[str, tuple[Tensor, int]] = {}

    def __call__(self, batch: Any) -> Any:
        """The result of the step.

        Raises:
            ModuleError: the step itself has changed a parameter or a buffer.
        """
        counters, self._versions = Counters(self._module), _versions_of(self._module)
        try:
            return self._step(batch)
        finally:
            counters.begin()
            _refuse_changed(self._module, self._versions)

    @contextmanager
    def model_runs(self) -> Iterator[None]:
        """A context in which the model does answer: the step hasn't changed what changes in it."""
        before = _versions_of(self._module)
        yield
        for name, (tensor, version) in _versions_of(self._module).items():
            if name not in before or before[name][0] is not tensor or before[name][1] != version:
                self._versions[name] = tensor, version


def _versions_of(module: nn.Module) -> dict[str, tuple[Tensor, int]]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: (one, one._version)
        for name, one in named.items()
        if not one.is_meta and not one.is_inference()
    }


def _refuse_changed(module: nn.Module, before: dict[str, tuple[Tensor, int]]) -> None:
    now = _versions_of(module)
    for name, (tensor, version) in before.items():
        if name in now and (now[name][0] is not tensor or now[name][1] != version):
            raise ModuleError(
                f"The training step changes {name!r} of {type(module).__name__} itself. With a "
                "schedule the step runs once a microbatch, and on the ranks of the first and the "
                "last stage only. Change it in on_train_batch_end, or leave schedule out."
            )


@contextmanager
def agreed(line: Line) -> Iterator[None]:
    """All ranks of the pipeline. A context whose error on one rank is one on all, so that none
    waits for it.
    """
    error: CoreError | None = None
    try:
        yield
    except CoreError as raised:
        error = raised
    texts = line.gather_objects(None if error is None else str(error))
    if error is not None:
        raise error
    for text in texts:
        if text is not None:
            raise ModuleError(text)


@contextmanager
def answering_once(chain: Chain, answer: Any) -> Iterator[None]:
    """A context in which the model's first call has an answer.

    Raises:
        ModuleError: it is called again.
    """
    num_calls = 0

    def call(*_: Any, **__: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 1:
            raise ModuleError(
                f"The training step called {type(chain.layout.module).__name__} twice, which has "
                "been cut into stages. With a schedule every step calls it once: join what it is "
                "to compute in one batch, or leave schedule out."
            )
        return answer

    with chain.answering(call):
        yield


def unpack(found: Any) -> tuple[str, Tensor | None, Any]:
    """The kind of what a step has returned, the loss, and its weight.

    Raises:
        ModuleError: there is more in it.
    """
    if found is None:
        return "nothing", None, None
    if isinstance(found, Tensor) and found.numel() == 1:
        return "loss", found, None
    if not isinstance(found, dict) or not isinstance(found.get("loss"), Tensor):
        raise ModuleError(
            f"The training step returned a {type(found).__name__}; expected a scalar tensor, a "
            "dict with one under 'loss', or None."
        )
    if others := sorted(set(found) - {"loss", "weight"}):
        raise ModuleError(
            f"The training step returned {', '.join(map(repr, others))} beside the loss. With a "
            "schedule the loss and its weight are brought to all ranks, and nothing else: log "
            "numbers, or leave schedule out."
        )
    weight = found.get("weight")
    return "dict" if weight is None else "weighted", found["loss"], weight


def compare(
    chain: Chain,
    step: Callable[[Any], Any],
    batch: Any,
    cut: Sequence[Any],
    computed: Sequence[Computed],
    seeds: Seeds,
) -> None:
    """On the rank of the last stage: see that microbatches may stand for their batch. No losses of
    what draws.

    Args:
        chain: of the model.
        step: the user's.
        batch: whole.
        cut: the batches of its microbatches.
        computed: the model's results for these.
        seeds: the random numbers of this pass.

    Raises:
        ModuleError: the loss of the batch isn't the mean of theirs, or the model is given mixed
            samples.
    """
    answers = [tree_unflatten(one.outputs, one.form) for one in computed]
    try:
        whole_answer = pieces.join(answers, [pieces.num_samples(piece) for piece in cut])
    except ModuleError:  # the model returns something else than values by sample
        return
    _refuse_mixed(chain, step, batch, len(cut), whole_answer, seeds)
    before = (torch.get_rng_state(), random.getstate())
    with answering_once(chain, whole_answer):
        _, whole, _ = unpack(step(batch))
    if (
        whole is None
        or not torch.equal(before[0], torch.get_rng_state())
        or random.getstate() != before[1]
    ):
        return
    losses, weights = [], []
    for piece, answer in zip(cut, answers, strict=True):
        with answering_once(chain, answer):
            _, loss, weight = unpack(step(piece))
        if loss is None:
            return
        weights.append(1.0 if weight is None else float(weight))
        losses.append(loss.double() if weights[-1] else torch.zeros((), dtype=torch.float64))
    mean = sum(loss.item() * weight for loss, weight in zip(losses, weights, strict=True)) / (
        sum(weights) or 1
    )
    scale = max(abs(mean), *(abs(loss.item()) for loss in losses))
    if abs(whole.item() - mean) > _TOLERANCES.get(whole.dtype, 5e-2) * scale:
        raise ModuleError(
            f"The training step's loss for a batch is {whole.item():.6g}, and the mean of those "
            f"for its {len(cut)} microbatches {mean:.6g}: with a schedule the step runs for one "
            "microbatch at a time. Return a mean over samples, or the number of items that it is a "
            "mean over as its 'weight'; a loss that is a sum, or mixes the samples of a batch, "
            "goes without schedule."
        )


def _refuse_mixed(
    chain: Chain, step: Callable[[Any], Any], batch: Any, num_pieces: int, answer: Any, seeds: Seeds
) -> None:
    """Refuse a step in which what the model is given for one microbatch follows from the samples of
    another, as mixup.

    It runs with the same random numbers; the second time all microbatches are as the first one. One
    that does something else in each call, the third time too, isn't compared.

    Raises:
        ModuleError: the model is given something else for that one.
    """
    size = size_of(batch) or 1
    seen: list[list[Tensor]] = []

    def note(*args: Any, **kwargs: Any) -> Any:
        leaves = [
            one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.ndim
        ]
        seen.append([one.detach()[: size // num_pieces] for one in leaves if len(one) == size])
        return answer

    for one in (batch, batches.first_everywhere(batch, size, num_pieces), batch):
        seeds.begin_step(chain.layout.num_stages, 0)
        with chain.answering(note):
            step(one)
    if len(seen) != 3:  # it calls the model twice, or not at all, which has an error of its own
        return
    for first, other, again in zip(*seen, strict=False):
        if _are_equal(first, again) and first.shape == other.shape and not _are_equal(first, other):
            raise ModuleError(
                f"The training step mixes the samples of a batch, as mixup does, before it calls "
                f"{type(chain.layout.module).__name__}: what that is given for the first of "
                f"{num_pieces} microbatches follows from the samples of others, and with a "
                "schedule the step runs for one microbatch at a time. Mix them in "
                "on_after_batch_transfer or the collate_fn, or leave schedule out."
            )


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, equal_nan=True)
