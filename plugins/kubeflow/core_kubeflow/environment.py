"""The cluster environment of Kubeflow Trainer."""

from __future__ import annotations

import os

from core import Absent, ConfigurationError, Found
from core.cluster import LocalEnvironment, read_int, read_port, read_text

__all__ = ["KubeflowEnvironment"]

_HINT = "Kubeflow Trainer sets it in every pod of a TrainJob."
_POD_VARIABLES = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


class KubeflowEnvironment(LocalEnvironment):
    """A pod of a `TrainJob` whose command is `python`: each pod is a node, whose processes the
    launcher makes.

    torchrun takes the same variables for its options, and then sets its own, which come first. Pods
    of a `PyTorchJob` have them too.

    Variables:
        PET_NNODES, PET_NODE_RANK: number of pods, and number of this one.
        PET_MASTER_ADDR, PET_MASTER_PORT: where the ranks meet.

    Ranks come from the launcher through `set_world`; before, this is one process a pod.
    """

    _is_numbered = False

    @classmethod
    def detect(cls) -> Found | Absent:
        """Found if this is a pod to which Kubeflow has given a rank."""
        for name in _POD_VARIABLES:
            if not os.environ.get(name, "").strip():
                return Absent(f"{name} is not set")
        return Found(read_int("PET_NNODES", hint=_HINT, minimum=1), priority=50)

    @property
    def main_address(self) -> str:
        """`PET_MASTER_ADDR`."""
        return read_text("PET_MASTER_ADDR", hint=_HINT)

    @property
    def main_port(self) -> int:
        """`PET_MASTER_PORT`."""
        return read_port(_HINT, "PET_MASTER_PORT") or read_int("PET_MASTER_PORT", hint=_HINT)

    def world_size(self) -> int:
        """The launcher's number; before there is one, `PET_NNODES`."""
        if self._is_numbered:
            return super().world_size()
        return self.num_nodes()

    def global_rank(self) -> int:
        """The launcher's number; before there is one, `PET_NODE_RANK`."""
        if self._is_numbered or os.environ.get("CORE_GLOBAL_RANK"):
            return super().global_rank()
        return self.node_rank()

    def node_rank(self) -> int:
        """The launcher's number; before there is one, `PET_NODE_RANK`."""
        if self._is_numbered:
            return super().node_rank()
        return read_int("PET_NODE_RANK", hint=_HINT)

    def set_world(
        self, *, world_size: int, global_rank: int, local_rank: int, node_rank: int
    ) -> None:
        """Set the ranks, as the launcher has numbered them."""
        self._is_numbered = True
        super().set_world(
            world_size=world_size,
            global_rank=global_rank,
            local_rank=local_rank,
            node_rank=node_rank,
        )

    def num_nodes(self) -> int:
        """`PET_NNODES`."""
        return read_int("PET_NNODES", hint=_HINT, minimum=1)

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """One pod a node.

        Raises:
            ConfigurationError: another number of nodes was asked for.
        """
        if num_nodes != self.num_nodes():
            raise ConfigurationError(
                f"Kubeflow started {self.num_nodes()} pods (PET_NNODES), but "
                f"num_nodes={num_nodes}. Pass "
                'num_nodes="auto", or set numNodes in the TrainJob.'
            )
