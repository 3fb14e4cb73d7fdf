"""The aliases that are `DDPStrategy` with options: how processes start, whether parameters may stay
unused.
"""

from __future__ import annotations

from functools import partial

from core_ddp.strategy import DDPStrategy

ddp_spawn = partial(DDPStrategy, start_method="spawn")
ddp_fork = partial(DDPStrategy, start_method="fork")
ddp_notebook = partial(DDPStrategy, start_method="fork")

ddp_find_unused_parameters_false = partial(DDPStrategy, find_unused_parameters=False)
ddp_find_unused_parameters_true = partial(DDPStrategy, find_unused_parameters=True)
ddp_spawn_find_unused_parameters_false = partial(ddp_spawn, find_unused_parameters=False)
ddp_spawn_find_unused_parameters_true = partial(ddp_spawn, find_unused_parameters=True)
ddp_fork_find_unused_parameters_false = partial(ddp_fork, find_unused_parameters=False)
ddp_fork_find_unused_parameters_true = partial(ddp_fork, find_unused_parameters=True)
ddp_notebook_find_unused_parameters_false = partial(ddp_notebook, find_unused_parameters=False)
ddp_notebook_find_unused_parameters_true = partial(ddp_notebook, find_unused_parameters=True)
