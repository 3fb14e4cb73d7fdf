"""Short suites in the place of whole ones that are run by hand."""

from core_testing import StrategySmoke

_FACTS = ("alias", "options", "make", "differs", "num_processes", "data_parallel_size", "length", "num_experts")


def in_short(suite, short=StrategySmoke):
    """The short suite of what a whole suite tests."""
    facts = {name: vars(suite)[name] for name in _FACTS if name in vars(suite)}
    return type(
        f"{suite.__name__}InShort", (short,), {**facts, "__doc__": suite.__doc__, "__module__": suite.__module__}
    )
