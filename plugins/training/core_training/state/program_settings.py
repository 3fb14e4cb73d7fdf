"""The rates, arguments, formats and seed of a program, beside those of the checkpoint that it goes
on from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from core_training.settings.resume import Resume

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.contract import PathLike
    from core_training.run import Run

_PARTS = {"batch_size": "data", "seed": "data", "precision": "optimizers"}
"""The part of a checkpoint that a setting concerns, where its name doesn't begin with that."""
_FOLLOWING = ("initial_lr", "base_lrs")
"""Settings that follow from others, and so are shown by those."""
_MOST_SHOWN = 12


def settings_of(run: Run) -> dict[str, object]:
    """The settings that the program says, by name, before callbacks, schedulers or a checkpoint
    change it.
    """
    batch_size = run.options.global_batch_size or getattr(run.loaders.train, "batch_size", None)
    # above that no user has given it
    seed = torch.initial_seed() if torch.initial_seed() < 2**32 else None
    others = {
        "batch_size": batch_size,
        "precision": run.strategy.precision_plugin.name,
        "seed": seed,
    }
    return {**others, **{name: owner[key] for name, (owner, key) in _places(run).items()}}


def compare_settings(run: Run, saved: Mapping[str, Any], path: PathLike) -> None:
    """All ranks, once all else is restored. Print where the program says something else, and what
    is used.

    With `Resume(settings="program")` that is the program's, and else what was restored. It is saved
    with the run.
    """
    resume, places, rows = run.resume or Resume(), _places(run), []
    for name, own in run.settings.items():
        there, part = saved.get(name), name.partition(".")[0]
        if there is None or own is None or there == own or not resume.takes(_PARTS.get(part, part)):
            continue
        is_programs = part in ("batch_size", "precision") or (
            resume.settings == "program" and name in places
        )
        if not is_programs:
            run.settings[name] = there
        elif name in places:
            owner, key = places[name]  # a rate keeps its share of the one that it began with
            owner[key] = owner[key] * own / there if key == "lr" and there else own
        if not name.endswith(_FOLLOWING):
            rows.append(_row(name, there, own, "program" if is_programs else "checkpoint"))
    if rows:
        title = f"The program says otherwise than {path}:"
        more = [f"  and {len(rows) - _MOST_SHOWN} more"] * (len(rows) > _MOST_SHOWN)
        header = _row("", "checkpoint", "program", "used")
        run.fabric.print("\n".join([title, header, *rows[:_MOST_SHOWN], *more]))


def _row(*cells: object) -> str:
    return "  {!s:<40} {!s:<12.40} {!s:<12.40} {}".format(*cells)


def _places(run: Run) -> dict[str, tuple[dict[str, Any], str]]:
    """The dict that holds each number or word of an optimizer's group and of a torch scheduler, and
    its key.
    """
    owners = [
        (f"optimizers.{index}.param_groups.{number}", group)
        for index, optimizer in enumerate(run.strategy.optimizers)
        for number, group in enumerate(optimizer.param_groups)
    ]
    for index, item in enumerate(run.strategy.lr_schedulers):
        owners += _owners(f"schedulers.{index}", item.scheduler)
    return {
        f"{name}.{key}": (owner, key)
        for name, owner in owners
        for key, value in owner.items()
        if not key.startswith("_") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    values = value if type(value) in (list, tuple) else [value]
    return all(type(one) in (bool, int, float, str) for one in values)


def _owners(name: str, scheduler: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The attributes of a scheduler and of those that it is made of. No code of the user's runs."""
    if isinstance(scheduler, LRScheduler):
        yield name, vars(scheduler)
        for index, part in enumerate(vars(scheduler).get("_schedulers", ())):
            yield from _owners(f"{name}.{index}", part)
