"""A plugin looks for its library before it needs it, and imports it where it does."""

import pytest

from core.contract import ConfigurationError, PluginLoadError
from core.registry import import_library, require_package


def test_a_missing_library_is_named_with_its_distribution():
    with pytest.raises(ConfigurationError) as raised:
        require_package("acme_lib", user="AcmeStrategy", install="acme-lib")
    assert str(raised.value) == (
        "AcmeStrategy needs the package acme_lib, which is not installed: `pip install acme-lib`."
    )


def test_a_folder_that_the_library_has_written_does_not_pass_for_it(tmp_path, monkeypatch):
    """Python takes any folder for a namespace package."""
    (tmp_path / "acme_lib").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigurationError, match="needs the package acme_lib, which is not installed"
    ):
        require_package("acme_lib", user="AcmeStrategy", install="acme-lib")


def test_a_library_that_is_there_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "acme_lib.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    require_package("acme_lib", user="AcmeStrategy", install="acme-lib")


def test_a_library_is_imported_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "acme_there").mkdir()
    (tmp_path / "acme_there" / "__init__.py").touch()
    (tmp_path / "acme_there" / "engine.py").write_text("number = 7")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_library("acme_there.engine", user="AcmeStrategy", install="").number == 7


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (None, "ModuleNotFoundError: No module named 'acme_broken'"),
        ("raise OSError('libacme.so: undefined symbol')", "OSError: libacme.so: undefined symbol"),
        ("assert False, 'another torch'", "AssertionError: another torch"),
    ],
)
def test_a_library_that_cannot_be_imported_is_named_with_its_recipe(
    source, cause, tmp_path, monkeypatch
):
    if source is not None:
        (tmp_path / "acme_broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginLoadError) as raised:
        import_library(
            "acme_broken.engine",
            user="strategy='acme'",
            install="Install it with: pip install acme",
        )
    assert str(raised.value) == (
        f"strategy='acme' needs the package acme_broken, which can't be imported: {cause}. "
        "Install it with: pip install acme"
    )
