"""Kubeflow's training operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.cluster.variables import TorchVariables, all_set, check_world, read_int
from core.contract import Absent, Found

if TYPE_CHECKING:
    from core.contract.accelerator import Detection

_HINT = "Kubeflow's training operator sets it in every pod of a PyTorchJob."
_POD_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


class KubeflowEnvironment(TorchVariables):
    """A pod of a `PyTorchJob`: one process a pod, and each pod is a node.

    Variables:
        KUBERNETES_PORT, or KUBERNETES_SERVICE_HOST: set in a pod.
        MASTER_ADDR, MASTER_PORT: where the ranks meet.
        WORLD_SIZE, RANK: number of pods, and number of this one.
    """

    hint = _HINT

    @classmethod
    def detect(cls) -> Detection:
        """Found if this is a pod to which the training operator has given a rank."""
        if not (all_set("KUBERNETES_PORT") or all_set("KUBERNETES_SERVICE_HOST")):
            return Absent("neither KUBERNETES_PORT nor KUBERNETES_SERVICE_HOST is set")
        if missing := [name for name in _POD_VARIABLES if not all_set(name)]:
            return Absent(f"in a Kubernetes pod, but {missing[0]} is not set")
        return Found(read_int("WORLD_SIZE", hint=_HINT, minimum=1), priority=50)

    def local_rank(self) -> int:
        """0: one process a pod."""
        return 0

    def node_rank(self) -> int:
        """`RANK`: each pod is a node."""
        return self.global_rank()

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """One device a pod, one pod a node.

        Raises:
            ConfigurationError: something else was asked for.
        """
        check_world(
            starter="Kubeflow",
            world_size=self.world_size(),
            world_variable="WORLD_SIZE",
            num_devices=num_devices,
            num_nodes=num_nodes,
            cure=f"Pass devices=1 and num_nodes={self.world_size()}; for several devices a pod, "
            "let the pod's command be torchrun.",
        )
