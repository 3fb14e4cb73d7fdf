"""Whether a contender's losses and weights are the reference's: where they part first, and by how
much.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core_plan.compared.figures import Result

TENSOR_TOLERANCE = 0.05
"""A tensor parts where it was moved from its first values by this part more, less or otherwise than
the reference's.
"""
ROUNDING = 10.0
"""How often the distance that a few units of rounding have made of the reference itself counts as
rounding.
"""
_FEW_STEPS = 3
_MOST_STEPS = 32


@dataclass
class Parting:
    """The first tensor that parts.

    Attributes:
        step: number of optimizer steps after which it does; 0 is before the first.
        tensor: its name.
        distance: the norm of its difference, as a part of the way that the reference has moved it
            (at step 0, of its own norm).
        largest: the largest difference of an element.
        num_parted: tensors that part at this step.
        num_tensors: of all.
        step_before: the last step before it at which weights were compared, and were equal; None if
            this is the first.
    """

    step: int
    tensor: str
    distance: float
    largest: float
    num_parted: int
    num_tensors: int
    step_before: int | None


def why_not_comparable(result: Result, reference: Result) -> str:
    """Why the losses of two contenders needn't be equal; empty if they should be."""
    if not (result.losses and reference.losses):
        return "no losses were seen"
    own, expected = result.samples_per_step, reference.samples_per_step
    if own != expected:
        return (
            f"a step takes {own:g} samples of all ranks, and {expected:g} under "
            f"{reference.strategy}, since the data has other shards. With a Trainer, "
            f"--global-batch-size {max(own or 0, expected or 0):g} makes them alike"
        )
    return ""


def first_parted_loss(
    found: Sequence[float], expected: Sequence[float], tolerance: float
) -> int | None:
    """The first step, from 1, whose losses differ by more than a part of the largest; None if none
    does.
    """
    scale = max(map(abs, expected), default=0.0)
    for number, (loss, wanted) in enumerate(zip(found, expected, strict=False)):
        if not abs(loss - wanted) <= tolerance * scale:
            return number + 1
    return None


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Of losses, as a part of the largest one."""
    scale = max(map(abs, expected), default=0.0)
    differences = [abs(loss - wanted) for loss, wanted in zip(found, expected, strict=False)]
    return max(differences, default=0.0) / scale if scale else float(any(differences))


def steps_to_weigh(parted: Sequence[int | None], num_steps: int) -> list[int]:
    """The steps at which weights are compared: up to the first loss that parts, at most 32 beside
    the beginning.
    """
    last = min(num_steps, max([_FEW_STEPS, *(step for step in parted if step is not None)]))
    if last <= _MOST_STEPS:
        return list(range(last + 1))
    half = _MOST_STEPS // 2
    rest = {half + round((last - half) * number / half) for number in range(half + 1)}
    return sorted({*range(half + 1), *rest})


def first_parting(
    distances: Mapping[str, Sequence[tuple[str, float, float]]],
    of_rounding: Mapping[str, Sequence[tuple[str, float, float]]],
) -> Parting | None:
    """The first step and tensor, in the order of the module's state, that differ by more than
    rounding makes of it.

    Args:
        distances: of the contender, as `WeightRecord.distances` has them.
        of_rounding: of the reference from itself, where its first weights were changed by a few
            units of rounding.
    """
    before = None
    for step in sorted(map(int, distances)):
        tensors = distances[str(step)]
        noise = {name: distance for name, distance, _ in of_rounding.get(str(step), ())}
        parted = [
            each
            for each in tensors
            if each[1] > max(_allowed(step), ROUNDING * noise.get(each[0], 0.0))
        ]
        if parted:
            name, distance, largest = parted[0]
            return Parting(step, name, distance, largest, len(parted), len(tensors), before)
        before = step
    return None


def _allowed(step: int) -> float:
    return 1e-5 if step == 0 else TENSOR_TOLERANCE


def judge(
    result: Result,
    reference: Result,
    tolerance: float,
    distances: Mapping[str, Any] | None,
    rounding: Mapping[str, Any],
) -> dict[str, Any]:
    """The verdict on a contender's numbers, as `--json` has it.

    Args:
        result: the contender.
        reference: the one that it is compared with.
        tolerance: of losses.
        distances: of its weights; None where they weren't compared.
        rounding: `losses` and `distances` of the disturbed reference; may be empty.
    """
    if why := why_not_comparable(result, reference):
        return {"comparable": False, "why": why}
    step = first_parted_loss(result.losses, reference.losses, tolerance)
    noise = rounding.get("losses", [])
    found: dict[str, Any] = {
        "comparable": True,
        "largest_loss_difference": largest_difference(result.losses, reference.losses),
        "loss_parts_at_step": step,
        "weights_compared": distances is not None,
        "weights_part": None,
    }
    if step is not None:
        found["loss"], found["reference_loss"] = result.losses[step - 1], reference.losses[step - 1]
        own = abs(found["loss"] - found["reference_loss"])
        if step <= len(noise) and own <= ROUNDING * abs(noise[step - 1] - found["reference_loss"]):
            found["by_rounding"] = True
    if distances is not None:
        parting = first_parting(distances, rounding.get("distances", {}))
        found["weights_part"] = None if parting is None else asdict(parting)
    return found


def sentence(found: Mapping[str, Any], reference: str, has_dropout: bool = False) -> str:
    """The verdict in words."""
    if not found:
        return ""
    if not found["comparable"]:
        return f"losses aren't comparable: {found['why']}"
    step, parting = found["loss_parts_at_step"], found["weights_part"]
    difference = found["largest_loss_difference"]
    if step is None and parting is None:
        kind = "losses and weights" if found["weights_compared"] else "losses"
        how = f"within {difference:.1e} of the largest" if difference else "equal bit by bit"
        return f"{kind} as under {reference}; losses {how}"
    parts = []
    if step is not None:
        parts.append(
            f"losses part at step {step}: {found['loss']:.6g}, and {found['reference_loss']:.6g} "
            f"under {reference}"
            + (", as a few units of rounding make it" if found.get("by_rounding") else "")
        )
    if parting is not None:
        parts.append(_describe(parting))
    elif step is not None and found["weights_compared"]:
        parts.append("no tensor parts by more than rounding up to there")
    if has_dropout and step is not None:
        parts.append("the module has dropout, whose random numbers differ by strategy")
    return "; ".join(parts)


def _describe(parting: Mapping[str, Any]) -> str:
    name, distance = parting["tensor"], parting["distance"]
    where = f"{parting['num_parted']} of {parting['num_tensors']} tensors"
    if parting["step"] == 0:
        return f"before the first step {name} differs by {distance:.1%} of its norm ({where} do)"
    before = parting["step_before"]
    gap = (
        ""
        if before is None or before == parting["step"] - 1
        else f" (or between it and step {before})"
    )
    return (
        f"first tensor that parts: {name} at step {parting['step']}{gap}, {distance:.1%} of its "
        f"update, {parting['largest']:.2g} in an element ({where} part there)"
    )
