"""[options] "Enumerations"."""

import enum


class OutputMode(enum.IntEnum):
    """[options] poptorch.OutputMode, [batching] "poptorch.Options.outputMode". `EveryN` isn't simulated."""

    Final = 0
    All = 2
    Sum = 3
    Default = 4


class ReductionType(enum.IntEnum):
    """[options] poptorch.ReductionType."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ConnectionType(enum.IntEnum):
    """[options] poptorch.ConnectionType. `Never` isn't simulated."""

    Always = 0
    OnDemand = 1


class DataLoaderMode(enum.IntEnum):
    """[options] poptorch.DataLoaderMode. The asynchronous modes aren't simulated."""

    Sync = 0
