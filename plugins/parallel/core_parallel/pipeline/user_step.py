"""The user's step while a schedule runs it for a microbatch: what it changes and returns."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, nn

from core import CoreError, ModuleError
from core.contract import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from core_parallel.communication.point_to_point import Line
    from core_parallel.pipeline.chain import Chain


@contextmanager
def unchanging(module: nn.Module) -> Iterator[None]:
    """A context for the user's step.

    Raises:
        ModuleError: the step itself has changed a parameter or a buffer.
    """
    before = _versions_of(module)
    yield
    now = _versions_of(module)
    for name, (tensor, version) in before.items():
        if name in now and (now[name][0] is not tensor or now[name][1] != version):
            text = (
                f"The training step changes {name!r} of {type(module).__name__} itself. With a "
                "schedule the step runs once a microbatch, and to its end on the rank of the last "
                "stage only. Change it in on_train_batch_end, or leave schedule out."
            )
            refuse(ModuleError(text), axis="pipeline")


def _versions_of(module: nn.Module) -> dict[str, tuple[Tensor, int]]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: (one, one._version)
        for name, one in named.items()
        if not one.is_meta and not one.is_inference()
    }


@contextmanager
def agreed(line: Line) -> Iterator[None]:
    """All ranks of the pipeline. A context whose error on one rank is one on all, so that none
    waits for it.
    """
    error: CoreError | None = None
    own = None
    try:
        yield
    except CoreError as raised:
        error, own = raised, str(raised)
    texts = line.gather_objects(own)
    if error is not None:
        raise error
    for text in filter(None, texts):
        raise ModuleError(text)


@contextmanager
def answering_once(chain: Chain, answer: Callable[..., Any]) -> Iterator[None]:
    """A context in which something else answers the model's first call.

    Raises:
        ModuleError: it is called again, or not at all.
    """
    num_calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 1:
            raise ModuleError(
                f"The training step called {type(chain.layout.module).__name__} twice, which has "
                "been cut into stages. With a schedule every step calls it once: join what it is "
                "to compute in one batch, or leave schedule out."
            )
        return answer(*args, **kwargs)

    with chain.answering(call):
        yield
    if not num_calls:
        refuse_without_call(chain)


def refuse_without_call(chain: Chain) -> NoReturn:
    """Refuse a step that has returned without a call of the model."""
    raise ModuleError(
        f"The training step returned without a call of {type(chain.layout.module).__name__}, which "
        "has been cut into stages. With a schedule every step calls it once; leave schedule out "
        "for steps that may skip it."
    )


def unpack(found: Any) -> tuple[str, Tensor | None, Any]:
    """The kind of what a step has returned, the loss, and its weight, which is 1 if it says none.

    Raises:
        ModuleError: there is more in it.
    """
    if found is None:
        return "nothing", None, 1
    if isinstance(found, Tensor) and found.numel() == 1:
        return "loss", found, 1
    if not isinstance(found, dict) or not isinstance(found.get("loss"), Tensor):
        raise ModuleError(
            f"The training step returned a {type(found).__name__}; expected a scalar tensor, a "
            "dict with one under 'loss', or None."
        )
    others = sorted(set(found) - {"loss", "weight"})
    if others:
        raise ModuleError(
            f"The training step returned {', '.join(map(repr, others))} beside the loss. With a "
            "schedule the loss and its weight are brought to all ranks, and nothing else: log "
            "numbers, or leave schedule out."
        )
    weight = found.get("weight")
    if weight is None:
        return "dict", found["loss"], 1
    return "weighted", found["loss"], weight
