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


def settings_of(run: Run) -> dict[str, object]:
    """The settings that the program says, by name, before callbacks, schedulers or a checkpoint
    change it.
    """
    settings: dict[str, object] = {
        "batch_size": run.options.global_batch_size
        or getattr(run.loaders.train, "batch_size", None),
        "precision": run.strategy.precision_plugin.name,
    }
    if torch.initial_seed() < 2**32:  # above that no user has given it
        settings["seed"] = torch.initial_seed()
    for name, (owner, key) in _places(run).items():
        settings[name] = owner[key]
    return settings


def compare_settings(run: Run, saved: Mapping[str, Any], path: PathLike) -> None:
    """All ranks, once all else is restored. Print where the program says something else, and what
    is used.

    With `Resume(settings="program")` that is the program's, and else what was restored. It is saved
    with the run.
    """
    resume = run.resume or Resume()
    places = _places(run)
    rows = []
    for name, own in run.settings.items():
        there = saved.get(name)
        part = name.partition(".")[0]
        if there in (None, own) or own is None or not resume.takes(_PARTS.get(part, part)):
            continue
        used = "checkpoint"
        if part in ("batch_size", "precision"):
            used = "program"
        elif resume.settings == "program" and name in places:
            used = "program"
            owner, key = places[name]
            if key == "lr" and there:  # a rate keeps its share of the one that it began with
                owner[key] = owner[key] * own / there
            else:
                owner[key] = own
        if used == "checkpoint":
            run.settings[name] = there
        if not name.endswith(_FOLLOWING):
            rows.append(_row(name, there, own, used))
    if rows:
        rows.insert(0, _row("", "checkpoint", "program", "used"))
        run.fabric.print(f"The program says otherwise than {path}:", *rows, sep="\n")


def _row(*cells: object) -> str:
    return "  {!s:<40} {!s:<12.40} {!s:<12.40} {}".format(*cells)


def _places(run: Run) -> dict[str, tuple[dict[str, Any], str]]:
    """The dict that holds each number or word of an optimizer's group and of a torch scheduler, and
    its key.
    """
    owners = {}
    for index, optimizer in enumerate(run.strategy.optimizers):
        for number, group in enumerate(optimizer.param_groups):
            owners[f"optimizers.{index}.param_groups.{number}"] = group
    for index, item in enumerate(run.strategy.lr_schedulers):
        owners.update(_owners(f"schedulers.{index}", item.scheduler))
    places = {}
    for name, owner in owners.items():
        for key, value in owner.items():
            if not key.startswith("_") and _is_plain(value):
                places[f"{name}.{key}"] = (owner, key)
    return places


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str)


def _owners(name: str, scheduler: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The attributes of a scheduler and of those that it is made of. No code of the user's runs."""
    if isinstance(scheduler, LRScheduler):
        yield name, vars(scheduler)
        for index, part in enumerate(vars(scheduler).get("_schedulers", ())):
            yield from _owners(f"{name}.{index}", part)
