"""The bytes that a rank hands to torch.distributed in a step, as far as they follow from the
model.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils._pytree import tree_leaves, tree_map

from core.cli import size_text
from core_parallel.explained.texts import Row
from core_parallel.tensor.vocabulary import ColwiseLogits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from core_parallel.explained.placed_model import PlacedModel

_BY_BATCH = "by the batch"


def rows(model: PlacedModel) -> Iterator[Row]:
    """A row for each axis with several ranks."""
    sizes = model.sizes
    if sizes.pipeline > 1:
        yield _over_pipeline(model)
    if sizes.shard > 1:
        text = _by_place(model, lambda at: _over_shard(model, model.parameters_of(at)), "a step")
        yield (
            "sends over shard",
            text,
            "shards, each time they are gathered, and whole gradients, to be averaged, once",
        )
    yield from _averages(model)
    if sizes.tensor > 1:
        yield _over_tensor(model)
    if sizes.context > 1:
        yield (
            "sends over context",
            _BY_BATCH,
            "attention exchanges heads, or gathers keys and values, in each layer",
        )
    if sizes.expert > 1:
        yield (
            "sends over expert",
            _BY_BATCH,
            "tokens go to the ranks of their experts and back, and their gradients",
        )


def _by_place(model: PlacedModel, count: Callable[[int], float], unit: str) -> str:
    """A number of bytes for each place in the pipeline, or one where they are about alike."""
    texts = [size_text(count(position)) for position in range(model.sizes.pipeline)]
    shown = texts[:1] if len(set(texts)) == 1 else texts
    return f"{', '.join(shown)} {unit}"


def _over_shard(model: PlacedModel, own: Iterable[Tensor]) -> int:
    again = {id(parameter) for unit in model.units for parameter in unit.parameters()}
    total = 0
    for one in own:
        if (shards := model.num_shards(one)) > 1:
            kept = model.kept(one)
            total += kept * _width(one, model.gathers_as) * (2 if id(one) in again else 1)
            reduced = model.reduces_as or model.gathers_as
            if one.requires_grad:  # a stage also says of each gradient whether it is there
                total += kept * shards * _width(one, reduced) + (0 if model.layout is None else 4)
    return total


def _averages(model: PlacedModel) -> Iterator[Row]:
    """Gradients that torch's shards don't average: those in shards over copies, all others over
    shards too.
    """
    for axes, is_sharded in ((("data", "context"), True), (("data", "shard", "context"), False)):
        shared = [axis for axis in axes if getattr(model.sizes, axis) > 1]
        counts = [
            _averaged(model, model.parameters_of(at), is_sharded)
            for at in range(model.sizes.pipeline)
        ]
        if shared and any(counts):
            text = _by_place(model, counts.__getitem__, "a step")
            yield (
                f"sends over {' and '.join(shared)}",
                text,
                "gradients, to be averaged once a step",
            )
    if model.sizes.expert > 1 and model.sizes.of_experts[0] > 1:
        text = _by_place(model, lambda at: _of_experts(model, model.parameters_of(at)), "a step")
        yield (
            "sends of experts",
            text,
            f"gradients, to be averaged over {model.sizes.of_experts[0]} copies once a step",
        )


def _of_experts(model: PlacedModel, own: Iterable[Tensor]) -> int:
    return sum(model.kept(one) * one.element_size() for one in own if id(one) in model.experts_in)


def _averaged(model: PlacedModel, own: Iterable[Tensor], is_sharded: bool) -> int:
    """Gradients, and a number for each that says whether it is there."""
    found = [one for one in own if one.requires_grad and id(one) not in model.experts_in]
    found = [one for one in found if (model.num_shards(one) > 1) == is_sharded]
    return sum(model.kept(one) * one.element_size() + 4 for one in found)


def _over_tensor(model: PlacedModel) -> Row:
    layers: Counter[int] = Counter()
    others = 0
    for name, style in model.styles.items():
        part: Any = model.module.get_submodule(name)
        if isinstance(style, ColwiseParallel | RowwiseParallel):
            layers[id(part.weight)] += _of_layer(part, style, model)
        else:
            others += 1
    why = (
        "a position of each sample: results of layers cut by rows, gradients of inputs of those "
        "cut by columns"
    )
    if others:
        why += f"; without {others} of other styles"
    text = _by_place(
        model,
        lambda at: sum(layers[id(one)] for one in model.parameters_of(at)),
        "a position",
    )
    return "sends over tensor", _up_to(model) + text, why


def _up_to(model: PlacedModel) -> str:
    """Of values, which autocast makes smaller here and there."""
    stored = next(model.module.parameters()).dtype
    return "" if model.formats.compute in (None, stored) else "up to "


def _of_layer(part: Any, style: ColwiseParallel | RowwiseParallel, model: PlacedModel) -> int:
    """The bytes of a position that a rank sends for a layer, in forward and backward."""
    is_embedding = isinstance(part, nn.Embedding)
    inputs, outputs = (
        (0, part.embedding_dim) if is_embedding else (part.in_features, part.out_features)
    )
    gives_whole, takes_whole = (
        _is_whole(one) for one in (style.output_layouts, style.input_layouts)
    )
    if isinstance(style, ColwiseLogits) and style.joins:
        gives_whole = True  # where the model returns them
    if isinstance(style, ColwiseParallel):
        count = (inputs if takes_whole else 0) + (
            outputs // model.sizes.tensor if gives_whole else 0
        )
    else:
        count = (outputs if gives_whole else 0) + (
            inputs // model.sizes.tensor if takes_whole else 0
        )
    return int(count * part.weight.element_size())


def _is_whole(layouts: Any) -> bool:
    return all(isinstance(one, Replicate) for one in layouts)


def _over_pipeline(model: PlacedModel) -> Row:
    layout = model.layout
    assert layout is not None, "there is one with a pipeline"
    why = (
        "results to the next stage, and their gradients to the one before; without schedule=, "
        "the model's result too"
    )
    widths, unit, source = _boundaries(model)
    if not widths:
        return (
            "sends over pipeline",
            _BY_BATCH,
            f"{why}; example_input_array or a config's hidden_size would say more",
        )
    sent = [0.0] * layout.size
    for stage in range(layout.num_stages - 1):
        ends = layout.owner(stage), layout.owner(stage + 1)
        if ends[0] != ends[1]:
            for position in ends:
                sent[position] += widths[stage]
    return (
        "sends over pipeline",
        _up_to(model) + _by_place(model, sent.__getitem__, unit),
        f"{source}: {why}",
    )


def _boundaries(model: PlacedModel) -> tuple[list[float], str, str]:
    """The bytes between stages, of what, and by what that is known; none where it isn't."""
    layout = model.layout
    assert layout is not None, "there is one with a pipeline"
    count = layout.num_stages - 1
    if getattr(model.module, "example_input_array", None) is not None:
        with suppress(Exception):  # what can't run on meta may run elsewhere
            return _of_example(model), "a sample", "as in example_input_array"
    for part in model.module.modules():
        hidden = getattr(getattr(part, "config", None), "hidden_size", None)
        if isinstance(hidden, int):
            width = next(model.module.parameters()).element_size()
            return (
                [float(hidden * width)] * count,
                "a position",
                f"hidden_size={hidden}, a position of each sample",
            )
    return [], "", ""


class _Called(Exception):
    """The module that is cut was called."""


def _of_example(model: PlacedModel) -> list[float]:
    layout = model.layout
    example: Any = model.module.example_input_array
    assert layout is not None, "there is one with a pipeline"
    args, kwargs = ((), example) if isinstance(example, dict) else (example, {})
    args = (args,) if isinstance(args, Tensor) else tuple(args)
    args, kwargs = tree_map(
        lambda one: one.to("meta") if isinstance(one, Tensor) else one, (args, kwargs)
    )
    num_samples = next(len(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
    calls: list[Any] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.append((args, kwargs))
        raise _Called

    handle = layout.module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad(), suppress(_Called):
            model.module(*args, **kwargs)
    finally:
        handle.remove()
    found: list[float] = []
    result: Any = None
    with torch.no_grad():
        for stage in range(layout.num_stages - 1):
            result = layout.run(stage, calls[0], result)
            tensors = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
            found.append(sum(one.nbytes for one in tensors) / num_samples / model.sizes.context)
    return found


def _width(tensor: Tensor, dtype: torch.dtype | None) -> int:
    """Bytes of an element, in a format where that is one of floating point."""
    return (
        dtype.itemsize
        if dtype is not None and tensor.is_floating_point()
        else tensor.element_size()
    )
