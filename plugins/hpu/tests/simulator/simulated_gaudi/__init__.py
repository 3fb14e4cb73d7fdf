"""The parts of the simulated library: tensors, lazy graphs, memory, a process group. Ours, not the
vendor's.
"""


def undocumented(module):
    """The `__getattr__` of a module: whatever no page of the vendor's describes isn't there."""

    def refuse(name):
        raise AttributeError(
            f"{module}.{name}: no page of the vendor's documentation that was read describes it."
        )

    return refuse
