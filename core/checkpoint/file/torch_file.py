"""A state in one file, as torch.save writes it, and NumPy's arrays and scalars in it, made without
NumPy's unpickling.

NumPy's unpickler trusts the dtype in the file, object fields included, which it then reads as
pointers. torch's safe unpickler makes stand-ins instead; scalars come out right at once, arrays by
`unwrap`.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import serialization

from core.checkpoint.file import single_file
from core.checkpoint.state import array_types
from core.checkpoint.state.plain_state import to_plain
from core.checkpoint.storage import messages
from core.contract.errors import CheckpointCorruptedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from core.checkpoint.format.digest import HashingWriter
    from core.contract.checkpoint_io import PathLike
    from core.contract.checkpoint_reader import CheckpointReader

_OWN = "format"
"""The section that every state of the core's Trainer has."""
_HEAD_BYTES = 1 << 20


def write(state: dict[str, Any], path: PathLike, *, is_sealed: bool = False) -> None:
    """Replace what is at `path`.

    Args:
        state: of a run.
        path: a local path or a URL.
        is_sealed: put the digest into the file, and none beside it.

    Raises:
        CheckpointError: it can't be written, or `state` holds something else than plain types,
            tensors and arrays.
    """
    plain = to_plain(state)

    def fill(file: HashingWriter) -> None:
        save: Any = partial(torch.save, plain)  # it needs `write` and `flush` only
        if not is_sealed:
            save(file)
            return
        from core.checkpoint.format import seal  # few write such files

        seal.write(file, save)

    single_file.replace(path, fill, is_sealed=is_sealed)


def load(file: BinaryIO, path: str) -> dict[str, Any]:
    """The state in a file.

    Raises:
        CheckpointCorruptedError: it is something else.
    """
    reader = None
    try:
        loaded = unpickle(file)
    except (MemoryError, OSError, Warning):
        # a warning that the user has made an error says nothing of the file
        raise
    except Exception as error:
        reader = _reader_of(file, path)
        loaded = reader and reader.read(file, path)
        if loaded is None:
            raise CheckpointCorruptedError(
                f"{path!r} is not a checkpoint that can be loaded without running code from it: "
                f"{reason_of(error)}. Expected a file written by core, or by torch.save with plain "
                "types and tensors only."
            ) from error
    if not isinstance(loaded, dict):
        raise CheckpointCorruptedError(
            f"{path!r} holds a {type(loaded).__name__}. Expected a dict, the state of a run."
        )
    if _OWN in loaded:
        return loaded
    reader = reader or _reader_of(file, path)
    if reader is None:
        return loaded
    try:
        return reader.translate(loaded)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointCorruptedError(
            f"{path!r} is damaged, or no checkpoint of {reader.program}, whose marks it has: "
            f"{messages.describe(error):.300}. Load another one, or its weights alone."
        ) from error


def unpickle(
    file: BinaryIO, stand_ins: Iterable[tuple[Any, str]] = (), mapped_from: str | None = None
) -> Any:
    """Read what torch has saved in a file: tensors, arrays and plain types. None of it accesses
    other memory.

    Args:
        file: seekable.
        stand_ins: what is made in place of other classes that are in it, with their names; NumPy's
            are as ever.
        mapped_from: the path of the file, if its tensors are to be on mapped memory.

    Raises:
        Exception: torch's error for a file that isn't one of its own.
    """
    with (
        allowed([bytes, *(each for each in stand_ins if each[1] not in NAMES)]),
        # Without the check, indices of sparse tensors are taken as they are.
        torch.sparse.check_sparse_tensor_invariants(),
        warnings.catch_warnings(),
    ):
        # torch 2.14 says that it looks at all indices, which takes its time; here that isn't the
        # user's choice.
        warnings.filterwarnings("ignore", "Validating sparse tensor invariants", UserWarning)
        source: Any = mapped_from or file
        loaded = torch.load(
            source, map_location="cpu", weights_only=True, mmap=mapped_from is not None
        )
    return unwrap(loaded)


def _reader_of(file: BinaryIO, path: str) -> CheckpointReader | None:
    """The reader of an installed package that recognizes the file, which isn't the core's own."""
    from core.registry.checkpoint_readers import reader_of

    file.seek(0)
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    return reader_of(head, path)


def reason_of(error: Exception) -> str:
    """The reason why torch didn't load a file, without the advice to load it unsafely that its
    message begins with.
    """
    _, found, reason = str(error).partition("WeightsUnpickler error: ")
    if not found:
        return messages.describe(error)
    return reason.partition(" by default")[0].partition("\n")[0] or "it isn't a file of torch.save"


class _StandIn:
    """Is replaced by what it has made, and so can't be a key."""

    __hash__ = None  # type: ignore[assignment]
    made: Any

    def __init__(self, *_: object) -> None:
        """Ignore what an empty array is made of."""


class _Type(_StandIn):
    """Stands for `numpy.dtype`."""

    def __init__(self, code: object, *_: object) -> None:
        self.made = array_types.type_of(code)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        """The byte order, and nothing that makes another type of it."""
        _, order, *fields = state[:5]
        if fields != [None, None, None]:
            raise ValueError(f"NumPy's type {self.made.str!r} with fields")
        self.made = array_types.type_of(order + self.made.str[1:])


class _Array(_StandIn):
    """Stands for `numpy.ndarray`, and for the function that pickles call to make an empty one."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Build the array from its pickled state."""
        _, shape, kind, is_fortran, content = state
        self.made = array_types.array_of(kind.made, shape, content, "F" if is_fortran else "C")


def _scalar(kind: _Type, content: bytes = b"") -> object:
    return array_types.array_of(kind.made, (), content)[()]


_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
"""NumPy 1 pickled under the second name."""

STAND_INS: list[tuple[Callable[..., object], str]] = [
    (_Type, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_Array, f"{module}._reconstruct") for module in _MODULES),
    *((_scalar, f"{module}.scalar") for module in _MODULES),
]
"""As `torch.serialization.add_safe_globals` takes them."""
NAMES = frozenset(name for _, name in STAND_INS)


@contextmanager
def allowed(others: Sequence[Any]) -> Iterator[None]:
    """A context in which torch's safe unpickler makes stand-ins, and nothing of NumPy's that the
    program allows it.

    Args:
        others: what else it may make.
    """
    programs = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    serialization.add_safe_globals([*filter(_is_not_numpys, programs), *STAND_INS, *others])
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(programs)


def _is_not_numpys(allowed: Any) -> bool:
    name = allowed[1] if isinstance(allowed, tuple) else allowed.__module__
    return not f"{name}.".startswith("numpy.")


def unwrap(value: Any) -> Any:
    """The same state with arrays in it, as torch's unpickler made it of `STAND_INS`; changed in
    place.
    """
    if isinstance(value, _StandIn):
        return value.made
    kind = type(value)
    if kind is tuple:
        return tuple(map(unwrap, value))
    if kind is list:
        value[:] = map(unwrap, value)
    elif kind in (dict, OrderedDict, Counter):
        for key, item in value.items():
            value[key] = unwrap(item)
    return value
