"""Messages to the user of a run: options that are refused, addresses, and steps that were made
alone.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from core import ConfigurationError
from core_hivemind.errors import PeersError
from core_hivemind.options import COMPRESSIONS
from core_hivemind.streams import PEERS_VARIABLE

if TYPE_CHECKING:
    from core_hivemind.options import SwarmOptions
    from core_hivemind.swarm import Swarm


def refuse(options: SwarmOptions, batch_size: int | None, precision: str) -> None:
    """Refuse options that contradict each other or hivemind, before anything is started.

    Raises:
        ConfigurationError: with what can be.
    """
    averaging = options.averaging
    wrong = [
        (
            options.target_batch_size < 1,
            "target_batch_size: the samples that all peers together see for one step, such "
            "as HivemindStrategy(target_batch_size=4096). It must be given, and be the same for "
            "all peers",
        ),
        (
            not options.run_id or "." in options.run_id,
            f"run_id={options.run_id!r}: a name without dots",
        ),
        (options.min_peers < 1, f"min_peers={options.min_peers}: at least 1, this peer itself"),
        (
            batch_size is not None and batch_size < 1,
            f"batch_size={batch_size}: at least 1, or None to have it counted",
        ),
        (
            averaging.average_state_every < 1,
            f"average_state_every={averaging.average_state_every}: at least 1",
        ),
        (
            not 0 < averaging.matchmaking_time < averaging.averaging_timeout,
            f"matchmaking_time={averaging.matchmaking_time} "
            f"and averaging_timeout={averaging.averaging_timeout}: seconds, of which the first are "
            "less than the second",
        ),
        (
            precision == "16-mixed",
            "precision='16-mixed' scales the loss by what each peer alone has seen. Use "
            "'bf16-mixed', or '32-true'",
        ),
        *(
            (
                getattr(averaging, name) not in COMPRESSIONS,
                f"{name}={getattr(averaging, name)!r}: one of {', '.join(map(repr, COMPRESSIONS))}",
            )
            for name in ("compression", "state_compression")
        ),
    ]
    for is_wrong, text in wrong:
        if is_wrong:
            raise ConfigurationError(f"strategy='hivemind', {text}.")


def announce(run_id: str, addresses: list[str]) -> None:
    """Print how others join, where everybody sees it: the addresses are new with each start."""
    logging.getLogger("core").warning(
        "Others join run %r with the variable %s=%s", run_id, PEERS_VARIABLE, ",".join(addresses)
    )


def warn_of_missed_peers(swarm: Swarm) -> None:
    """Warn of a step that other peers should have had a part in."""
    warnings.warn(
        f"Step {swarm.epoch} of run {swarm.options.run_id!r} has averaged {swarm.missed} that were "
        "here lately, this one included: weights of peers may differ until all of them meet again. "
        "If it goes on, a larger target_batch_size, matchmaking_time or averaging_timeout leaves "
        "more time to meet.",
        stacklevel=4,
    )


def refuse_loneliness(swarm: Swarm) -> None:
    """Refuse that `min_peers` were asked for, and no step was made with another peer.

    Raises:
        PeersError: with what may be in the way.
    """
    if swarm.options.min_peers > 1 and swarm.is_lonely:
        raise PeersError(
            f"min_peers={swarm.options.min_peers}, and none of the {swarm.lone_steps} steps of "
            f"this peer of run {swarm.options.run_id!r} was made with another one: weights of "
            "peers differ. The others were here at the beginning. See that they still run, and "
            "that all can connect to each other, not only to one; peers behind a firewall need "
            "client_mode=True. Raise averaging_timeout if averaging takes longer."
        )


def warn_of_loneliness(swarm: Swarm) -> None:
    """Warn at the end of a run that never met anybody."""
    if swarm.is_lonely:
        warnings.warn(
            f"This peer of run {swarm.options.run_id!r} has trained alone: none of its "
            f"{swarm.lone_steps} steps was made with another peer. See that the others have the "
            "same run_id and model, and can be reached.",
            stacklevel=3,
        )
