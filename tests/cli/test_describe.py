import pytest

ACME = '''
from functools import partial

from core import Strategy


class Base(Strategy):
    """The base."""

    def __init__(self, *, period: int = 4, **parts):
        """Make it.

        Args:
            period: steps between two exchanges;
                zero is never.
            parts: of every strategy.
        """
        super().__init__(**parts)


class AcmeStrategy(Base):
    """Trains with acme.

    A second paragraph.
    """

    def __init__(self, level: "str | None", *, verbose: bool = False, **options):
        """Make it.

        Args:
            level: how hard to try.
            verbose: say more.

        Raises:
            ValueError: not an option.
        """
        super().__init__(**options)


class Plain(Strategy):
    """Has the options of every strategy."""


acme_fast = partial(AcmeStrategy, "high", period=16)


def acme_slow(delay_s: float = 1.0):
    """Build it slowly.

    Args:
        delay_s: seconds to wait.
    """
    return Plain()
'''


@pytest.fixture
def acme(core_cli):
    aliases = {"acme": "AcmeStrategy", "acme_fast": "acme_fast", "acme_slow": "acme_slow"}
    lines = "".join(f"{alias} = core_acme:{attribute}\n" for alias, attribute in aliases.items())
    core_cli.install(
        "core-acme",
        f"[core.strategies]\n{lines}",
        modules={"core_acme": ACME},
        summary="Acme for core",
    )
    return core_cli


def test_options_of_a_class_and_its_bases(acme):
    done = acme("describe", "Acme")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "acme: a strategy of core-acme 1.0\nAcme for core\n\ncore_acme.AcmeStrategy\n    Trains "
        "with acme.\n\nOptions\n"
        "  level: str | None\n      how hard to try.\n  verbose: bool = False\n      say more.\n"
        "  period: int = 4\n      steps between two exchanges; zero is never.\n"
        "  accelerator: Accelerator | None = None\n"
    )
    assert "not an option" not in done.stdout


def test_a_preset(acme):
    text = acme("describe", "acme_fast").stdout
    assert (
        "A preset of core_acme.AcmeStrategy(level='high', period=16)\n    Trains with acme.\n"
        in text
    )
    assert "  level: str | None = 'high' (set by this alias)\n" in text
    assert "  period: int = 16 (set by this alias)\n" in text


def test_a_function(acme):
    text = acme("describe", "acme_slow").stdout
    assert "core_acme.acme_slow\n    Build it slowly.\n" in text
    assert "  delay_s: float = 1.0\n      seconds to wait.\n" in text


def test_without_options(core_cli):
    text = core_cli("describe", "cpu").stdout
    assert text.startswith("cpu: an accelerator of core-base ")
    assert "It takes no options." in text


def test_an_alias_of_several_kinds(core_cli):
    core_cli.install(
        "core-acme",
        "[core.precisions]\nacme = a:A\n[core.checkpoint_ios]\nacme = a:B\n",
        modules={"a": ""},
    )
    done = core_cli("describe", "acme")
    assert done.returncode == 1
    assert "'acme' is a precision and a checkpoint io" in done.stderr
    assert "`core describe acme --kind checkpoint-io`" in done.stderr
    assert "no attribute 'B'" in core_cli("describe", "acme", "--kind", "checkpoint-io").stderr


def test_a_misspelt_alias(core_cli):
    done = core_cli("describe", "single_devise")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "Error: Nothing is called 'single_devise'. Did you mean 'single_device'"
    )


def test_a_plugin_that_cannot_be_imported(core_cli):
    core_cli.install(
        "core-bad", "[core.strategies]\nbad = core_bad:S\n", modules={"core_bad": "1 / 0"}
    )
    done = core_cli("describe", "bad")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
