"""Tensors that a call has made and that are kept somewhere after it: in a list of the program, or
by a hook.
"""

from __future__ import annotations

import gc
import sys
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

_VARIABLES = (CellType, FunctionType)
_BETWEEN = (list, tuple, dict, set, deque, CellType)
_TABLE = "_core_parallel_table"
"""An attribute of tensors that were made of nothing, such as a table of positions, which may be
kept for the next call.
"""

_DEPTH = 5  # such as a dict in a variable of a function's variables
_COUNTS = Version(torch.__version__) >= Version("2.13")
"""True if Python's count of a tensor has one for all that autograd has. Before, what lies in a list
from before a fork isn't seen.
"""


class MadeTensors(TorchFunctionMode):
    """Notes the results of torch's functions while they run as ever."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result."""
        result = func(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        known = set(map(id, given))  # some return what they are given
        made = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
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
        known = {id(leaf) for leaf in tree_leaves([results, *map(vars, modules)])}
        alive = {id(one): one for one in (ref() for ref in self._made) if one is not None}
        held = _held([alive.pop(key) for key in alive.keys() - known])
        del alive
        if held and (kept := _kept(held)):
            text = (
                f"{title} keeps a tensor of shape {tuple(kept[0].shape)} elsewhere than in its "
                "result: in a list, or by a hook. Each rank of a pipeline would have those of its "
                "own parts, of one microbatch after the other. Return it with the result, through "
                "the parts behind; or keep numbers."
            )
            refuse(ModuleError(text), axis="pipeline")


def _held(tensors: list[Any]) -> list[Any]:
    """Those that Python has, as far as counts show it."""
    tensors.append(torch.empty(0))  # which this list alone has
    counts = [sys.getrefcount(one) - (one._use_count() > 1) for one in tensors]
    return [one for one, count in zip(tensors, counts, strict=True) if count > counts[-1]]


def _kept(held: list[Tensor]) -> list[Tensor]:
    """Those that something of the user's has, as far as the garbage collector knows who has it."""
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
