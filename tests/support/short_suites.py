"""Short suites in the place of whole ones that are run by hand."""

from core_testing import StrategySmoke

_FACTS = (
    *("alias", "options", "num_processes", "data_parallel_size", "length", "num_experts"),
    *("dtype", "tolerance", "heavy_modules"),
)


def in_short(suite, short=StrategySmoke):
    """The short suite of what a whole suite tests with these of its attributes; one that has more
    needs its own.

    Its `make` becomes that of another class, and so may not call `super()`.
    """
    facts = {
        name: getattr(suite, name)
        for name in (*_FACTS, *(["differs"] if hasattr(suite, "differs") else []))
    }
    facts |= {"make": suite.make} if "make" in vars(suite) else {}
    facts |= {"__doc__": suite.__doc__, "__module__": suite.__module__}
    return type(f"{suite.__name__}InShort", (short,), facts)
