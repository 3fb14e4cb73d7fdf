"""What a laptop with macOS has to hold."""

import unicodedata

import pytest

from support.checkout import ROOT


@pytest.mark.parametrize("folder", ["core", "plugins", "tests", "docs", "examples", "benchmarks"])
def test_names_of_files_differ_by_more_than_case(folder):
    """A file system that ignores case, as that of macOS, can hold this checkout."""
    names = [str(path) for path in ROOT.joinpath(folder).rglob("*")]
    assert len({unicodedata.normalize("NFC", name).casefold() for name in names}) == len(names)
