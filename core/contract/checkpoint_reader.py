"""The CheckpointReader contract: reads the files of another program as the state of a run."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import BinaryIO


class CheckpointReader(abc.ABC):
    """Reads files of another program as the state of a run. Meant to be subclassed, and made
    without arguments.

    The core reads the file itself, and nothing in it is executed. A reader is asked only for a file
    that isn't the core's own. The call sequence, in each process that reads:

    1. `recognizes(head)`, of every installed reader, until one says yes.
    2. `read(file, path)`, of that one, if the file holds objects of other classes.
    3. `translate(saved)`, of the same.

    A folder that isn't the core's own is named and not read: the core asks `recognizes_folder` what
    does read it.
    """

    program: ClassVar[str]
    """The name of the program that writes these files, for messages: `"PyTorch Lightning"`."""

    @abc.abstractmethod
    def recognizes(self, head: bytes) -> bool:
        """True if a file that begins with these bytes, up to a megabyte, is one of the
        program's.
        """

    @abc.abstractmethod
    def translate(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a run, as a Trainer of core saves it: weights, hyperparameters, optimizers,
        progress.

        Args:
            saved: the content of the file: plain types, tensors and arrays.

        Raises:
            KeyError, IndexError, TypeError, ValueError, AttributeError: the file isn't what it
                looked like; the core names it.
        """

    def read(self, file: BinaryIO, path: str) -> dict[str, Any] | None:
        """The content of a file that holds more than plain types, tensors and arrays. None: it is
        refused.

        Nothing in it may be executed: `core.checkpoint.building_blocks.unpickle` makes only what is
        named to it.

        Args:
            file: seekable.
            path: of it, for warnings.
        """
        return None

    def recognizes_folder(self, path: str, names: Collection[str]) -> str | None:
        """Sentences that name the command that reads a folder of this program; None for any other
        folder.

        Args:
            path: of the folder, or its URL: for the command.
            names: of what lies in it.
        """
        return None
