"""A rehearsal that goes on where something is wrong, to find all of it."""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import pickle
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from core.contract import Proof, Remark, users_line
from core_plan.rehearsal.rehearse import Rehearsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OF_ALL = {"reduce_boolean_decision", "broadcast", "gather_objects", "barrier"}


class Proved(Rehearsed):
    """One rehearsal, in the child process. Its report has `findings`, `axes` and `exchanges` beside
    what a plan needs, or in its place.
    """

    def __init__(self, *given: Any, objects: Mapping[str, list[str]], **options: Any) -> None:
        """As `Rehearsed`.

        Args:
            given: its arguments.
            objects: that the first rank has broadcast, pickled, by kind; none on that rank.
            options: its named arguments.
        """
        super().__init__(*given, **options)
        self._broadcast: dict[str, list[str]] = {}
        self._received = {name: [*texts] for name, texts in objects.items()}
        self._proof = Proof()
        self._mode.exchanges = []
        # what ranks do by the clock, such as exchange signals, they do alike
        now = time.monotonic()
        time.monotonic = lambda: now
        self._broadcast_among = dist.broadcast_object_list
        if not self._is_among_all and not self._is_real:
            dist.broadcast_object_list = self._broadcast_list  # type: ignore[assignment]  # here

    def _made(self, owner: Any, given: Mapping[str, Any]) -> None:
        super()._made(owner, given)
        answers = vars(owner.strategy)
        for name in _OF_ALL & answers.keys():
            answers[name] = functools.partial(self._answer, name, answers[name])

    def _answer(self, name: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note a call that all ranks make, of which this one knows the answer."""
        self._note(name)
        answer = own(*args, **kwargs)
        is_shared = name == "broadcast" and not self._is_among_all
        return self._of_first(answer) if is_shared else answer

    def _note(self, name: str, group: Any = None) -> None:
        exchanges, own = self._mode.exchanges, group or dist.group.WORLD
        if exchanges is not None and own is not None:
            exchanges.append((name, "", own.group_name, users_line()))

    def _broadcast_list(
        self, objects: list[Any], src: Any = None, group: Any = None, *rest: Any, **options: Any
    ) -> None:
        if group is not None and dist.get_backend(group) != "fake":
            self._broadcast_among(objects, src, group, *rest, **options)
            return
        self._note("broadcast_object_list", group)
        of_group = options.get("group_src")
        is_own = not src if of_group is None else of_group == dist.get_rank(group)
        if self._rank == 0 and not is_own and group is not None:
            self._mode.receives[group.group_name] = None
        objects[:] = self._of_first(objects, "objects")

    def _of_first(self, own: Any, kind: str = "object") -> Any:
        """The first rank's object, which is noted there."""
        if self._rank:
            objects = self._received.get(kind)
            text = objects.pop(0) if objects else ""
            return pickle.loads(base64.b64decode(text)) if text else own
        text = ""
        # of tensors, which may have no values, each rank has its own
        if not any(isinstance(one, torch.Tensor) for one in tree_leaves(own)):
            with suppress(Exception):  # what can't be pickled is an error of a run
                text = base64.b64encode(pickle.dumps(own)).decode()
        self._broadcast.setdefault(kind, []).append(text)
        return own

    def prove(self, run: Callable[[], None]) -> None:
        """Run the program, to its end or an error."""
        with self._proof:
            try:
                run()
                self._end("The program has ended before its first optimizer step.")
            except SystemExit as end:
                self._end(
                    "The program has ended before its first optimizer step, with status "
                    f"{end.code}."
                )
            except Exception as error:
                traceback.print_exc()
                frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
                kind = type(error).__name__
                self._proof.add(Remark(f"{kind}: {error}", users_line(frames[::-1])))
        self._report({})
        os._exit(0)  # as where the steps have ended

    def _end(self, text: str) -> None:
        """Note that a program has ended without a step, which is all that a proof takes."""
        if not self._num_steps:
            self._proof.add(Remark(text, is_wrong=False))

    def _report(self, found: dict[str, Any]) -> None:
        if "failure" in found and not found.get("is_engine"):
            self._end(found.pop("failure"))
        more = {
            "findings": [dataclasses.asdict(one) for one in self._proof.findings],
            "axes": [*self._proof.axes],
            "exchanges": self._mode.exchanges,
            "groups": self._groups(),
            "receives": [*self._mode.receives],
            "objects": self._broadcast,
        }
        super()._report({**found, **more})

    def _groups(self) -> dict[str, dict[str, Any]]:
        """The ranks of each group that has exchanged something, and its axis, by its name."""
        named = self._axes()
        groups: dict[str, Any] = {
            each.group_name: each for each in dist.distributed_c10d._world.pg_map
        }
        return {
            name: {
                "ranks": dist.get_process_group_ranks(group),
                "axis": named.get(name, ""),
            }
            for name, group in groups.items()
        }
