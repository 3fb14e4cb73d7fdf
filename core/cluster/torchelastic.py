"""torchrun, and any other program that starts one process a rank and sets the same variables."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from core.cluster.variables import TorchVariables, all_set, check_world, read_int, read_or_0
from core.contract import Absent, Found

if TYPE_CHECKING:
    from core.contract.accelerator import Detection

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_HINT = f"torchrun sets it; by hand, set all of {', '.join(_RANK_VARIABLES)}."


class TorchElasticEnvironment(TorchVariables):
    """`torchrun`, or any launcher that sets torch.distributed's own variables for every process.

    Variables:
        RANK, WORLD_SIZE, LOCAL_RANK: ranks, and number of processes.
        LOCAL_WORLD_SIZE, or LOCAL_SIZE: processes on this node. Optional; all of them if neither is
            set.
        GROUP_WORLD_SIZE: number of nodes. Optional; follows from WORLD_SIZE and the size of a node.
        GROUP_RANK, or CROSS_RANK: number of this node. Optional; follows from RANK and the size of
            a node.
        MASTER_ADDR, MASTER_PORT: where the ranks meet.
        TORCHELASTIC_RUN_ID: set by torchrun; name of the job.
        TORCHELASTIC_RESTART_COUNT: how often torchrun has started the workers again.
        TORCHELASTIC_USE_AGENT_STORE: `"True"` if torchrun's own TCP store listens at the main
            address.
    """

    hint = _HINT

    @classmethod
    def detect(cls) -> Detection:
        """Found if torchrun says so, or if all of torch's variables are set."""
        if "TORCHELASTIC_RUN_ID" not in os.environ and not all_set(*_RANK_VARIABLES):
            return Absent(
                "neither TORCHELASTIC_RUN_ID nor all of " + ", ".join(_RANK_VARIABLES) + " are set"
            )
        return Found(read_int("WORLD_SIZE", hint=_HINT, minimum=1), priority=90)

    def local_rank(self) -> int:
        """`LOCAL_RANK`."""
        return read_int("LOCAL_RANK", hint=_HINT)

    def node_rank(self) -> int:
        """`GROUP_RANK` or `CROSS_RANK`, or what follows from the size of a node."""
        if os.environ.get("GROUP_RANK") or os.environ.get("CROSS_RANK"):
            return read_int("GROUP_RANK", "CROSS_RANK", hint=_HINT)
        return self.global_rank() // self._local_world_size()

    def num_nodes(self) -> int | None:
        """`GROUP_WORLD_SIZE`, or what follows from the size of a node."""
        if os.environ.get("GROUP_WORLD_SIZE"):
            return read_int("GROUP_WORLD_SIZE", hint=_HINT, minimum=1)
        return max(1, self.world_size() // self._local_world_size())

    def _local_world_size(self) -> int:
        return read_int("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE", hint=_HINT, minimum=1)

    @property
    def restart_count(self) -> int:
        """`TORCHELASTIC_RESTART_COUNT`, or 0."""
        return read_or_0("TORCHELASTIC_RESTART_COUNT", hint=_HINT)

    @property
    def store_is_hosted(self) -> bool:
        """True if torchrun's agent keeps a store at the main address, which outlives restarts."""
        return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def validate(self, num_devices: int, num_nodes: int) -> None:
        """The number of processes must be the number of devices.

        Raises:
            ConfigurationError: it isn't.
        """
        local, world_size = self._local_world_size(), self.world_size()
        num_local = local
        if not (os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")):
            num_local = self.local_rank() + 1  # no variable says more of this node
        starter, again = "The launcher", f"let it start {num_devices * num_nodes}."
        if "TORCHELASTIC_RUN_ID" in os.environ:
            starter, options = "torchrun", "--nproc-per-node {} --nnodes {}"
            if "core.cli.rank_program" in sys.orig_argv:
                starter, options = "core run", "--devices {} --num-nodes {}"
            again = f"start it with {options.format(num_devices, num_nodes)}."
        check_world(
            starter=starter,
            world_size=world_size,
            world_variable="WORLD_SIZE",
            num_devices=num_devices,
            num_nodes=num_nodes,
            cure=f"Pass devices={local} and num_nodes={max(1, world_size // local)}, or {again}",
            num_local=num_local,
        )

    def job_id(self) -> str | None:
        """`TORCHELASTIC_RUN_ID`; None where torchrun was given no name of its own."""
        name = os.environ.get("TORCHELASTIC_RUN_ID")
        if name == "none":
            return None
        return name
