"""Cluster environments that are described by torch.distributed's own variables."""

from __future__ import annotations

from typing import ClassVar

from core.cluster.variables import read_int, read_port, read_text
from core.contract import ClusterEnvironment


class TorchVariables(ClusterEnvironment):
    """The base of the environments that set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for every process."""

    hint: ClassVar[str]
    """The advice where one of them isn't set: the end of the error's message."""

    @property
    def main_address(self) -> str:
        """`MASTER_ADDR`."""
        return read_text("MASTER_ADDR", hint=self.hint)

    @property
    def main_port(self) -> int:
        """`MASTER_PORT`."""
        # `read_int` raises where the variable isn't set.
        return read_port(self.hint) or read_int("MASTER_PORT", hint=self.hint, minimum=1)

    def world_size(self) -> int:
        """`WORLD_SIZE`."""
        return read_int("WORLD_SIZE", hint=self.hint, minimum=1)

    def global_rank(self) -> int:
        """`RANK`."""
        return read_int("RANK", hint=self.hint)
