"""Every error that a user can cause. Each says what was expected, what came, and what to do.

```
CoreError
├── ConfigurationError (ValueError)      arguments that can't be met; raised before work starts
│   ├── NotYetChosenError (AttributeError)  a part that nothing has chosen so far
│   ├── UnknownAliasError (LookupError)  no provider offers this alias
│   ├── AliasConflictError               several providers offer it, or it is reserved
│   ├── BlockedPluginError               offered, but blocked by the environment
│   ├── IncompatiblePluginError          offered, but made for another release of core
│   ├── DeviceError                      no such device, or the wrong number of them
│   ├── UnsupportedError                 this strategy doesn't have the capability
│   └── ModuleError                      the user's module lacks or returns the wrong thing
├── PluginLoadError                      a requested plugin can't be imported, or isn't what it says
├── LaunchError                          processes can't be made here
├── WorkerError                          a worker died; carries rank, exit code and its traceback
│   └── HangError                        no rank made progress for long; carries what each one did
├── FingerprintError                     ranks run different plugins
├── ReplicasDifferError                  ranks that must be alike aren't
├── NonFiniteLossError (ArithmeticError)  a loss is NaN or infinite, and that is to end the run
└── CheckpointError                      a checkpoint can't be written or read
    ├── CheckpointNotFoundError (FileNotFoundError)
    └── CheckpointCorruptedError         it is there, and damaged, foreign or incomplete
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.text.printable import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.contract.capability import Capability
    from core.contract.difference import Difference
    from core.contract.rank_location import RankLocation
    from core.contract.spec import Spec


class CoreError(Exception):
    """The root of all errors that `core` raises on purpose. Picklable with all attributes, to cross
    processes.

    Its text may quote foreign text, such as a name in a file. Line ends and tabs are the only
    control characters that stay in it, and of a text of more than 3,000 characters the beginning
    and the end; `args` has all of it.
    """

    _max_chars = 3000

    def __str__(self) -> str:
        return shortened(printable(super().__str__(), keep="\n\t"), self._max_chars)

    def __reduce__(self) -> tuple[Callable[..., CoreError], tuple[Any, ...]]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ConfigurationError(CoreError, ValueError):
    """The arguments contradict each other, or this machine. No process was started."""


class NotYetChosenError(ConfigurationError, AttributeError):
    """A part was asked for before anything had chosen it: of a strategy, of a Fabric, a module's
    Trainer.
    """


class UnknownAliasError(ConfigurationError, LookupError):
    """No provider offers the alias.

    Attributes:
        kind: name of the kind that was searched, such as `"strategy"`.
        alias: what the user wrote.
        near: aliases that look alike, best first.
    """

    def __init__(self, message: str, *, kind: str, alias: str, near: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.kind, self.alias, self.near = kind, alias, tuple(near)


class AliasConflictError(ConfigurationError):
    """Several providers offer the alias, or it belongs to another provider.

    Attributes:
        specs: the competing specs.
    """

    def __init__(self, message: str, *, specs: Sequence[Spec] = ()) -> None:
        super().__init__(message)
        self.specs = tuple(specs)


class BlockedPluginError(ConfigurationError):
    """The alias is offered, but `CORE_PLUGINS` or `CORE_DISABLE_PLUGINS` keeps it out."""


class IncompatiblePluginError(ConfigurationError):
    """The provider's own metadata excludes this release of `core`. It was not imported."""


class DeviceError(ConfigurationError):
    """The devices asked for don't exist here, or can't be used that way."""


class UnsupportedError(ConfigurationError):
    """The strategy does not declare the capability that the call needs.

    Attributes:
        capability: the missing one.
    """

    def __init__(self, message: str, *, capability: Capability | None = None) -> None:
        super().__init__(message)
        self.capability = capability


class ModuleError(ConfigurationError):
    """The user's module lacks a method, or a method returned something that can't be used."""


class PluginLoadError(CoreError):
    """A plugin that was asked for can't be loaded. The cause is chained.

    Attributes:
        spec: which alias, target and provider.
    """

    def __init__(self, message: str, *, spec: Spec | None = None) -> None:
        super().__init__(message)
        self.spec = spec


class LaunchError(CoreError):
    """Processes can't be made here, in this way."""


class WorkerError(CoreError):
    """A worker process ended before its work did.

    Attributes:
        rank: global rank of the worker that failed first.
        exit_code: as the operating system reports it; negative for a signal, -9 for SIGKILL.
        worker_traceback: the worker's own traceback, where it could still be written.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        exit_code: int | None = None,
        worker_traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank, self.exit_code, self.worker_traceback = rank, exit_code, worker_traceback


class HangError(WorkerError):
    """No rank has made progress for longer than the watchdog allows.

    All ranks end with the same error.

    Attributes:
        rank: the first of the missing ranks.
        absent: the missing ranks.
        ranks: what each rank does, in their order.
        stacks_path: the file with all stacks, on the machine of the rank that wrote it; empty if it
            couldn't.
    """

    _max_chars = 300_000  # a line for each rank

    def __init__(
        self,
        message: str,
        *,
        absent: Sequence[int],
        ranks: Sequence[RankLocation] = (),
        stacks_path: str = "",
    ) -> None:
        super().__init__(message, rank=min(absent, default=0))
        self.absent, self.ranks, self.stacks_path = tuple(absent), tuple(ranks), stacks_path


class FingerprintError(CoreError):
    """The ranks of one run resolved to different plugins or versions."""


class ReplicasDifferError(CoreError):
    """Ranks that must be alike aren't: parameters, buffers, learning rates, or the steps that they
    have made.

    Attributes:
        difference: which ranks, since when, and where; None where that isn't known.
    """

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        super().__init__(message)
        self.difference = difference


class NonFiniteLossError(CoreError, ArithmeticError):
    """A training loss is NaN or infinite, and `terminate_on_nan=True` of a Trainer or Fabric was
    asked for.

    Attributes are None under Fabric, where the user's own loop counts:
        epoch: in which it came, from 0.
        batch_idx: of the batch whose loss it is.
        global_step: optimizer steps before it.
    """

    def __init__(
        self,
        message: str,
        *,
        epoch: int | None = None,
        batch_idx: int | None = None,
        global_step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.epoch, self.batch_idx, self.global_step = epoch, batch_idx, global_step


class CheckpointError(CoreError):
    """A checkpoint can't be written or read.

    Attributes:
        overwritten: whether what it was to be loaded into is overwritten in part, and must not be
            used any more.
    """

    overwritten = False


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """No checkpoint is at this path."""


class CheckpointCorruptedError(CheckpointError):
    """The checkpoint at this path is damaged, foreign or incomplete."""


def _rebuild(
    kind: type[CoreError], args: tuple[object, ...], attributes: dict[str, object]
) -> CoreError:
    """Rebuild a pickled error: its class may want keyword arguments, which pickle alone doesn't
    hand over.
    """
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
