"""[options] "Enumerations"."""

import enum


class OutputMode(enum.IntEnum):
    """[options] poptorch.OutputMode, [batching] "poptorch.Options.outputMode". `Sum` and `EveryN`
    aren't simulated.
    """

    Final = 0
    All = 2
    Default = 4
