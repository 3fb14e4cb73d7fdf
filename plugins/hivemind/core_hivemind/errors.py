"""The error of a swarm that isn't what was asked for."""

from core import CoreError


class PeersError(CoreError):
    """Peers that were asked for don't come, can't be reached, or train something else under the
    same name.
    """
