"""Requested and broken is an error that names the provider, the target and the cause."""

import sys

import pytest

import core.loggers
from core.contract.errors import ConfigurationError, PluginLoadError
from core.contract.logger import Logger
from support.fake_distributions import make_distribution

GOOD = """\
from core.contract.logger import Logger

class Acme(Logger):
    def __init__(self, folder="."):
        if folder == "nowhere":
            raise OSError("no such folder")
        self.folder = folder

    def log_metrics(self, metrics, step): ...

def preset(folder="preset"):
    return Acme(folder)

def wrong():
    return 3

class Other: ...

number = 3
"""


@pytest.fixture
def acme(site, registry):
    """Installs core-acme with one target and one source, and gives the registry."""

    def install(target="core_acme:Acme", source=GOOD):
        make_distribution(
            site,
            "core-acme",
            "1.0",
            f"[core.loggers]\nacme = {target}\n",
            modules={"core_acme": source},
        )
        return registry()

    return install


def failure(loggers, *, create=False):
    with pytest.raises(PluginLoadError) as raised:
        loggers.create("acme") if create else loggers.get("acme")
    assert raised.value.spec == loggers.providers_of("acme")[0].spec
    return str(raised.value), raised.value.__cause__


def test_a_class(acme):
    loggers = acme()
    assert loggers.get("acme") is sys.modules["core_acme"].Acme
    assert loggers.create("acme", folder="here").folder == "here"


def test_a_factory(acme):
    loggers = acme("core_acme:preset")
    assert loggers.get("acme") is sys.modules["core_acme"].preset
    assert loggers.create("acme").folder == "preset"
    assert isinstance(loggers.create("acme"), Logger)


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            "class Odd(BaseException): ...\nraise Odd('first line\\nsecond line')",
            "Odd: first line second line",
        ),
        ("def", "SyntaxError: "),
    ],
)
def test_an_import_that_fails(acme, source, cause):
    message, chained = failure(acme(source=source))
    assert message.startswith(
        "The logger 'acme' of core-acme 1.0 can't be loaded from 'core_acme:Acme': its import "
        f"raised {cause}"
    )
    assert (
        "Tell the authors of core-acme, or leave it out with CORE_DISABLE_PLUGINS=core-acme"
        in message
    )
    assert type(chained).__name__ == cause.partition(":")[0]


def test_ctrl_c_during_an_import_is_ctrl_c(acme):
    with pytest.raises(KeyboardInterrupt):
        acme(source="raise KeyboardInterrupt").get("acme")


def test_a_library_that_is_missing(acme):
    message, _ = failure(acme(source="import acme_heavy_library"))
    assert "ModuleNotFoundError: No module named 'acme_heavy_library'" in message
    assert (
        "Install what provides the module 'acme_heavy_library'; see the documentation of core-acme."
        in message
    )


def test_a_module_that_is_missing(acme):
    message, _ = failure(acme("core_acme_gone.logger:Acme"))
    assert (
        "The installation is incomplete: try `pip install --force-reinstall core-acme`." in message
    )


@pytest.mark.parametrize(
    "target", ["core_acme", "core acme:Acme", "core_acme:", ":Acme", "", "core-acme:Acme", "a:b:c"]
)
def test_a_target_that_is_none(acme, target):
    loggers = acme(target)
    assert "acme" not in loggers
    message, _ = failure(loggers)
    assert f"its target is {target!r}, where 'module:attribute' was expected" in message
    assert "core_acme" not in sys.modules


@pytest.mark.parametrize(
    ("target", "got"),
    [("core_acme:Other", "the class Other"), ("core_acme:number", "3 of type int")],
)
def test_a_target_of_another_type(acme, target, got):
    message, _ = failure(acme(target))
    assert (
        "expected a subclass of core.contract.logger.Logger, or a function that returns one's "
        f"instance; got {got}" in message
    )


def test_a_factory_that_returns_something_else(acme):
    message, _ = failure(acme("core_acme:wrong"), create=True)
    assert "expected an instance of core.contract.logger.Logger; got 3 of type int" in message


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("import sys\ndef Acme(): sys.exit(0)", "making it raised SystemExit: 0"),
        ("class Odd(BaseException): ...\ndef Acme(): raise Odd('no')", "making it raised Odd: no"),
        ("def __getattr__(name): raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_factory_that_ends_the_program_is_a_plugin_that_cannot_be_loaded(acme, source, detail):
    message, chained = failure(acme(source=source), create=True)
    assert (
        f"can't be loaded from 'core_acme:Acme': {detail}. Tell the authors of core-acme" in message
    )
    assert not isinstance(chained, Exception)


def test_an_option_that_it_does_not_take(acme):
    with pytest.raises(ConfigurationError) as raised:
        acme().create("acme", foldre="here")
    assert str(raised.value) == (
        "The logger 'acme' of core-acme 1.0 can't be made with (foldre='here'): "
        "got an unexpected keyword argument 'foldre'. Did you mean 'folder'? It takes (folder='.')."
    )


def test_an_option_that_its_base_does_not_take(acme):
    source = (
        f"{GOOD}\nclass Further(Acme):\n    def __init__(self, **options): "
        "super().__init__(**options)"
    )
    with pytest.raises(
        ConfigurationError, match=r"can't be made with \(foldre='here'\): .* 'foldre'"
    ):
        acme("core_acme:Further", source).create("acme", foldre="here")


def test_an_error_of_core_passes_unchanged(acme):
    source = (
        "from core.contract.errors import DeviceError\ndef Acme(): raise DeviceError('no device')"
    )
    with pytest.raises(ConfigurationError, match=r"^no device$"):
        acme(source=source).create("acme")


# By the name of the class, for `from core.strategies import ...`.


def test_a_class_by_its_name(acme):
    loggers = acme()
    assert loggers.class_named("Acme") is sys.modules["core_acme"].Acme
    with pytest.raises(AttributeError, match="no installed package offers a logger class 'Acne'"):
        loggers.class_named("Acne")


@pytest.mark.parametrize("name", ["submodule", "_private", "__wrapped__"])
def test_the_packages_of_core_look_at_no_plugin_for_what_is_no_class(name):
    with pytest.raises(AttributeError, match=f"module 'core.loggers' has no attribute '{name}'"):
        getattr(core.loggers, name)
