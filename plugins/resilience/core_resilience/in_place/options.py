"""The options of `core go-on`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The options of the command.

    Attributes:
        num_nodes: nodes of a round.
        least_nodes: a round begins with fewer nodes, down to this number. Equal to `num_nodes`: it
            waits for another.
        num_devices: processes of each node.
        least_devices: with one node, a round begins with fewer processes, down to this number,
            where no spare is left. Equal to `num_devices`: a new process takes the place of a lost
            one.
        multiple_of: the processes of one node are a multiple of this number.
        num_spares: further processes of each node, which wait. Where one has taken a place, a new
            one is started.
        most_losses: how many processes and nodes may be lost.
        main_address: of the first node, at which its launcher listens for others.
        main_port: likewise.
    """

    num_nodes: int
    least_nodes: int
    num_devices: int
    least_devices: int
    multiple_of: int
    num_spares: int
    most_losses: int
    main_address: str
    main_port: int
