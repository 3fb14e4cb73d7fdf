"""The options of a parallel strategy: checked for every subclass, and shown where a constructor
hands them on.
"""

import inspect
from dataclasses import dataclass
from datetime import timedelta

import pytest

from core import ConfigurationError
from core.strategies import ParallelStrategy, check_options, known_options, with_options_of


@dataclass
class Engine:
    """What an engine takes.

    Attributes:
        bucket_mb: size of its buckets.
    """

    bucket_mb: int = 25


class Acme(ParallelStrategy):
    launcher_name = "spawn"

    @with_options_of(Engine)
    def __init__(self, *given, period=8, **options):
        """Options of the engine.

        Args:
            period: number of steps.
            options: of `Engine`.
        """
        self.bucket_mb = options.pop("bucket_mb", 25)
        super().__init__(*given, **options)


class Better(Acme):
    def __init__(self, *given, color="red", **options):
        super().__init__(*given, **options)


def test_the_options_of_all_constructors_are_known():
    assert Better(color="blue", period=2, bucket_mb=1, timeout=None).bucket_mb == 1
    parts = {
        "accelerator",
        "parallel_devices",
        "cluster_environment",
        "checkpoint_io",
        "precision_plugin",
    }
    of_all = {"process_group_backend", "timeout", "start_method"}
    assert known_options(Better) == {"color", "period", "bucket_mb", *of_all, *parts}


def test_another_option_is_refused_with_a_near_miss():
    with pytest.raises(
        ConfigurationError, match=r"Better has no option 'perod'\. Did you mean 'period'\?"
    ):
        Better(perod=2)
    with pytest.raises(
        ConfigurationError, match=r"Engine has no option 'b'\. Its options: one, two\."
    ):
        check_options("Engine", {"one": 1, "b": 2}, ("two", "one"))


def test_the_start_method_names_the_launcher():
    assert Acme().launcher_name == "spawn"
    assert Acme(start_method="fork").launcher_name == "fork"
    with pytest.raises(
        ConfigurationError, match=r"start_method='popen': expected one of 'subprocess', 'spawn'"
    ):
        Acme(start_method="popen")


@pytest.mark.parametrize("timeout", [3, "30 min", timedelta(), timedelta(seconds=-1)], ids=str)
def test_a_timeout_is_a_positive_duration(timeout):
    with pytest.raises(
        ConfigurationError, match=r"timeout=.*: expected a positive datetime.timedelta"
    ):
        Acme(timeout=timeout)


def test_a_class_says_which_start_methods_it_has():
    class Own(ParallelStrategy):
        start_methods = ("acme",)

    assert Own(start_method="acme").launcher_name == "acme"
    with pytest.raises(ConfigurationError, match="start_method='spawn': expected one of 'acme'"):
        Own(start_method="spawn")


def test_options_that_are_handed_on_stand_in_the_signature():
    shown = inspect.signature(Acme)
    assert list(shown.parameters) == ["given", "period", "bucket_mb", "options"]
    assert shown.parameters["bucket_mb"].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.getdoc(Acme.__init__).endswith("Options:\n    bucket_mb: size of its buckets.")


def test_a_closed_constructor_shows_its_sources_only():
    @with_options_of(Engine, ParallelStrategy.__init__, leave_out=("timeout",), closed=True)
    def construct(self, period=8, **options):
        """A constructor."""

    names = ["self", "period", "bucket_mb", "process_group_backend", "start_method"]
    assert list(inspect.signature(construct).parameters) == names
