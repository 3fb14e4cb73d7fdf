"""A plugin looks for its library before it needs it."""

import pytest

from core.contract import ConfigurationError
from core.registry import require_package


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
    with pytest.raises(ConfigurationError, match="needs the package acme_lib, which is not installed"):
        require_package("acme_lib", user="AcmeStrategy", install="acme-lib")


def test_a_library_that_is_there_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "acme_lib.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    require_package("acme_lib", user="AcmeStrategy", install="acme-lib")
