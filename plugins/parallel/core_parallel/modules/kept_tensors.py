"""Tensors that a call has made and that are kept somewhere after it: in a list of the program, or
by a hook.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections import deque
from functools import partial
from types import CellType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from core import ModuleError
from core.contract import refuse
from core_parallel.modules.given_tensors import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

_VARIABLES = (CellType, FunctionType)
_BETWEEN = (list, tuple, dict, set, deque, CellType)
_TABLE = "_core_parallel_table"
"""An attribute of tensors that were made of nothing, such as a table of positions, which may be
kept for the next call.
"""

_MOST = 64
"""Ways in which a stage's tensors are kept for backward; one that has more isn't looked at."""

_PAUSES_S = (0.001, 0.02, 0.2)
"""For threads of torch that have let go of a tensor, which counts once they get the interpreter."""

_DEPTH = 5  # such as a dict in a variable of a function's variables
_COUNTS = Version(torch.__version__) >= Version("2.13")
"""True if Python's count of a tensor has one for all that autograd has. Before, what lies in a list
from before a fork isn't seen.
"""


class MadeTensors(TorchFunctionMode):
    """Notes the results of torch's functions while they run as ever.

    Args:
        known: which results of other calls were kept for backward, by their places among all. It is
            added to; who has what takes long to find.
    """

    def __init__(self, known: set[tuple[int, ...]]) -> None:
        super().__init__()
        self._known, self._made = known, list[weakref.ref[Tensor]]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        result = func(*args, **(kwargs or {}))
        made = tensors_in([result])
        if not made:
            return result
        given = tensors_in([*args, *(kwargs or {}).values()])
        known = set(map(id, given))  # some return what they are given
        if all(hasattr(one, _TABLE) for one in given):
            for one in made:
                setattr(one, _TABLE, True)
        else:
            self._made += [weakref.ref(one) for one in made if id(one) not in known]
        return result

    def refuse_kept(self, title: str, modules: Iterable[nn.Module], results: Any) -> None:
        """Refuse what is kept beside a call's results and the attributes of modules, and not for
        backward.

        Args:
            title: of the module that was called.
            modules: whose attributes are seen otherwise.
            results: of the call.

        Raises:
            ModuleError: with the shape of the first one.
        """
        places: dict[int, int] = {}
        held = _held(self._alive(set(map(id, tree_leaves(results))), places))
        pattern = (len(self._made), *[places[id(one)] for one in held])
        if not held or pattern in self._known or len(self._known) >= _MOST:
            return
        seen = {id(leaf) for leaf in tree_leaves(list(map(vars, modules)))}
        held = [one for one in held if id(one) not in seen]
        held = _kept(held)
        for pause_s in _PAUSES_S:
            if held:
                time.sleep(pause_s)
                held = _held(held)
                held = _kept(held)
        if held:
            text = (
                f"{title} keeps a tensor of shape {tuple(held[0].shape)} elsewhere than in its "
                "result: in a list, or by a hook. Each rank of a pipeline would have those of its "
                "own parts, of one microbatch after the other. Return it with the result, through "
                "the parts behind; or keep numbers."
            )
            refuse(ModuleError(text), axis="pipeline")
        self._known.add(pattern)

    def _alive(self, known: set[int], places: dict[int, int]) -> list[Tensor]:
        """Those that are still there, but for known ones; their places are noted by identity."""
        found = []
        for place, ref in enumerate(self._made):
            one = ref()
            if one is not None and id(one) not in known and id(one) not in places:
                places[id(one)] = place
                found.append(one)
        return found


def _held(tensors: list[Any]) -> list[Any]:
    """Those that Python has, as far as counts show it."""
    tensors.append(torch.empty(0))  # which this list alone has
    of_autograd = [one._use_count() > 1 for one in tensors]
    counts = [
        sys.getrefcount(one) - has_one for one, has_one in zip(tensors, of_autograd, strict=True)
    ]
    return [one for one, count in zip(tensors, counts, strict=True) if count > counts[-1]]


def _kept(held: list[Tensor]) -> list[Tensor]:
    """Those that something of the user's has, as far as the garbage collector knows who has it."""
    if not held:
        return []
    holders = [one for one in gc.get_referrers(*held) if one is not held]
    users = [one for one in holders if not _is_of_graph(one, [holders])]
    of_users = {id(one) for one in gc.get_referents(*users)}
    seen = {id(one) for one in gc.get_referents(*holders)}
    return [one for one in held if id(one) in of_users or (_COUNTS and id(one) not in seen)]


def _is_of_graph(holder: Any, ours: list[Any]) -> bool:
    """True for what a library has, such as autograd for backward, and for a container that it has;
    and for variables of functions, which may be hooks of tensors.

    Args:
        holder: of a tensor, or of what holds one.
        ours: lists of holders, one for each step to here.
    """
    is_first = len(ours) == 1
    # a partial has what a checkpoint computes again
    if isinstance(holder, FrameType | partial) or (is_first and isinstance(holder, _VARIABLES)):
        return True
    if isinstance(holder, dict) and "__builtins__" in holder:
        return _is_of_library(holder.get("__name__"))
    if isinstance(holder, _BETWEEN):
        found = gc.get_referrers(holder) if len(ours) < _DEPTH else []
        holders = [one for one in found if not any(one is each for each in ours)]
        del found
        return bool(holders) and all(_is_of_graph(one, [*ours, holders]) for one in holders)
    owner = holder if isinstance(holder, type | FunctionType) else type(holder)
    return _is_of_library(owner.__module__)


def _is_of_library(name: Any) -> bool:
    return str(name).partition(".")[0] in ("torch", "builtins") or str(name).startswith("core")
