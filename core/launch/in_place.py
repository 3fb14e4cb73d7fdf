"""The launcher that calls in place: the processes exist already, or one is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.contract import Launcher
from core.launch.rank import refuse_second_zero

if TYPE_CHECKING:
    from collections.abc import Callable


class InPlaceLauncher(Launcher):
    """Calls the function in this process, which is one rank of a world that exists already; or
    alone on its node.
    """

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` here. Returns this rank's own result.

        Raises:
            LaunchError: this process is another rank than 0 of those that a launcher has made, and
                the run has but one.
        """
        environment = self.cluster_environment
        if environment is not None and not environment.creates_processes:
            if self.num_nodes == 1:
                refuse_second_zero()
            # A script that was started by hand on each of several nodes.
            number = environment.node_rank() if self.num_nodes > 1 else 0
            environment.set_world(
                world_size=self.num_nodes, global_rank=number, local_rank=0, node_rank=number
            )
        return function(*args, **kwargs)
