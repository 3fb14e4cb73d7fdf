"""Cluster environments in Lightning's form: `detect` gives a bool, and a program's own has
Lightning's methods.
"""

from __future__ import annotations

import abc
import signal
from operator import attrgetter
from typing import Any

from core import ClusterEnvironment as CoreClusterEnvironment
from core import Found
from core.cluster import LocalEnvironment as CoreLocalEnvironment
from core.cluster import LSFEnvironment as CoreLSFEnvironment
from core.cluster import MPIEnvironment as CoreMPIEnvironment
from core.cluster import SLURMEnvironment as CoreSLURMEnvironment
from core.cluster import TorchElasticEnvironment as CoreTorchElasticEnvironment
from core_kubeflow import KubeflowEnvironment as CoreKubeflowEnvironment
from core_lightning.utilities.lists import as_list


class KnowsCores(abc.ABCMeta):
    """The class of environments, to which those that core itself has made belong too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        core_class = cls.__dict__.get("_core_class")
        return super().__instancecheck__(instance) or (
            core_class is not None and isinstance(instance, core_class)
        )


class ClusterEnvironment(CoreClusterEnvironment, metaclass=KnowsCores):
    """The base of a program's own environment. Meant to be subclassed, with Lightning's methods.

    core calls them under its own names: `set_world` calls `set_world_size` and `set_global_rank`,
    `validate` calls `validate_settings`, and `creates_processes` is `creates_processes_externally`.
    """

    _core_class = CoreClusterEnvironment

    @property
    @abc.abstractmethod
    def creates_processes_externally(self) -> bool:
        """True if the environment starts every rank."""

    creates_processes = property(attrgetter("creates_processes_externally"))

    @classmethod
    def detect(cls) -> bool:  # type: ignore[override]  # core asks its own classes
        """True if this process runs in this environment."""
        return False

    def set_world_size(self, size: int) -> None:
        """Set the number of processes. Meant to be overridden."""

    def set_global_rank(self, rank: int) -> None:
        """Set the number of this process. Meant to be overridden."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare the user's arguments with what the scheduler gave. Meant to be overridden."""

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, in a process that a launcher made."""
        self.set_world_size(world_size)
        self.set_global_rank(global_rank)

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """Compare the user's arguments with what the scheduler gave."""
        self.validate_settings(num_devices, num_nodes)


class _InLightningsForm:
    """An environment of core's under Lightning's names. Stands before core's class."""

    creates_processes_externally = property(
        attrgetter("creates_processes"), doc="True if it starts every rank."
    )

    @classmethod
    def detect(cls) -> bool:
        """True if this process runs in this environment."""
        return isinstance(super().detect(), Found)  # type: ignore[misc]

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher, or the scheduler, has set all numbers at once."""

    set_global_rank = set_world_size

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compare the user's arguments with what the scheduler gave."""
        self.validate(num_devices, num_nodes)  # type: ignore[attr-defined]


def in_lightnings_form(name: str, form: type, base: type) -> type:
    """The class of core's with Lightning's names, which `form` has."""
    made = {"__module__": form.__module__, "__doc__": base.__doc__, "_core_class": base}
    return KnowsCores(name, (form, base), made)


LightningEnvironment = in_lightnings_form(
    "LightningEnvironment", _InLightningsForm, CoreLocalEnvironment
)
TorchElasticEnvironment = in_lightnings_form(
    "TorchElasticEnvironment", _InLightningsForm, CoreTorchElasticEnvironment
)
KubeflowEnvironment = in_lightnings_form(
    "KubeflowEnvironment", _InLightningsForm, CoreKubeflowEnvironment
)
LSFEnvironment = in_lightnings_form("LSFEnvironment", _InLightningsForm, CoreLSFEnvironment)
MPIEnvironment = in_lightnings_form("MPIEnvironment", _InLightningsForm, CoreMPIEnvironment)


class SLURMEnvironment(  # type: ignore[misc]  # whose `detect` gives a bool
    _InLightningsForm, CoreSLURMEnvironment, metaclass=KnowsCores
):
    """See `core.cluster.SLURMEnvironment`.

    Args:
        auto_requeue: save and put the job into the queue again when SLURM takes the machine away.
        requeue_signal: announces that; None is SIGUSR1.
    """

    _core_class = CoreSLURMEnvironment

    def __init__(
        self, auto_requeue: bool = True, requeue_signal: signal.Signals | None = None
    ) -> None:
        default = CoreSLURMEnvironment().requeue_signal
        super().__init__(requeue_signal=(requeue_signal or default) if auto_requeue else None)
        self.auto_requeue = auto_requeue


def listed(plugins: Any) -> list[Any]:
    """The argument `plugins` as a list, without a SLURMEnvironment outside of SLURM: programs for
    both have one.
    """
    given = as_list(plugins)
    return [each for each in given if type(each) is not SLURMEnvironment or each.detect()]
