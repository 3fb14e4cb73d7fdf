"""The device's own random generator."""

from contextlib import contextmanager, nullcontext

import torch

from simulated_gaudi import graph

generator = torch.Generator()


def of_the_device(operation):
    """Let an operation that draws random numbers draw them from the device's generator, not the
    host's.
    """
    return _swapped() if torch.Tag.nondeterministic_seeded in operation.tags else nullcontext()


@contextmanager
def _swapped():
    host = torch.default_generator.get_state()
    torch.default_generator.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(host)


def get_state():
    graph.launch("value")  # what waits draws first
    return generator.get_state()


def set_state(state):
    graph.launch("value")
    generator.set_state(state)


def seed_with(number):
    graph.launch("value")
    generator.manual_seed(number)
