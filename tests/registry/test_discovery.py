"""One damaged, dead or hidden distribution does nothing to the others, but for a row that tells."""

import os
import shutil
import sys

import pytest

from core.registry import discover
from support.fake_distributions import make_distribution
from support.hostile import LOOK_ALIKES

GOOD = "[core.loggers]\ngood = core_good:Good\n"


@pytest.fixture
def good(site):
    """A distribution that is in order."""
    make_distribution(site, "core-good", entry_points_text=GOOD)


def scan():
    return discover(refresh=True)


def names(found):
    return [provider.name for provider in found.providers]


def problem(found, source):
    (one,) = [problem for problem in found.problems if problem.source == source]
    return one


def test_a_provider_is_read_from_its_metadata(site):
    make_distribution(
        site,
        "Core_Acme",
        "1.2",
        """\
        [core.loggers]
        Acme-Fast = core_acme : Fast [extra]

        [core.strategies]
        # a comment
        acme = core_acme.strategy:Acme

        [core.hooks]
        acme = core_acme.hooks

        [console_scripts]
        acme = core_acme:main
        """,
        requires=[
            "core-training>=0.1",
            "core-other>=7",
            "torch",
            'Core_Training[testing]; extra == "test"',
        ],
        summary="All of Acme",
    )
    found = scan()
    (provider,) = found.providers
    assert found.problems == ()
    assert (provider.name, provider.version, provider.summary) == (
        "core-acme",
        "1.2",
        "All of Acme",
    )
    assert provider.location == str(site)
    assert provider.requires == ("core-training>=0.1", 'Core_Training[testing]; extra == "test"')
    assert [(spec.kind, spec.alias, spec.target) for spec in provider.specs] == [
        ("logger", "acme_fast", "core_acme:Fast"),
        ("strategy", "acme", "core_acme.strategy:Acme"),
        ("event hooks", "acme", "core_acme.hooks"),
    ]


def test_a_distribution_that_offers_nothing_is_no_provider(site):
    make_distribution(
        site, "numerics", entry_points_text="[console_scripts]\nnumerics = numerics:main\n"
    )
    make_distribution(site, "plain")
    assert scan() == discover()
    assert scan().providers == ()
    assert scan().problems == ()


def test_damaged_entry_points_of_another_distribution_are_told(site):
    """torch can't be imported while there are any."""
    make_distribution(site, "numerics", folder="~umerics-1.0.dist-info")
    make_distribution(site, "orphan", entry_points_text="a = b:c\n[x]\n")
    make_distribution(site, "torn", entry_points_text=b"[x]\n\xff\xfe = b:c\n", metadata=False)
    assert sorted(problem.source for problem in scan().problems) == ["orphan", "torn"]


def test_the_pass_is_cached_until_it_is_refreshed(site):
    scan()
    make_distribution(site, "core-good", entry_points_text=GOOD)
    assert names(discover()) == []
    assert names(scan()) == ["core-good"]


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [
        (
            "[core.loggers]\none = core_bad:One\nthis is no line\ntwo = core_bad:Two\n",
            3,
            "this is no line",
        ),
        ("[ x ]\n\n= value\n", 3, "= value"),
        (GOOD + "x" * 10_000 + "\n" + "junk\n" * 100, 3, "x" * 99),
    ],
)
def test_a_malformed_line_costs_its_own_distribution_only(good, site, text, number, line):
    folder = make_distribution(site, "core-bad", entry_points_text=text)
    found = scan()
    assert names(found) == ["core-good"]
    assert problem(found, "core-bad").detail == (
        f"{folder} can't be read: ValueError: line {number} of entry_points.txt is {line!r}, and "
        "not [group] or name = value. Install the package again, or delete that folder"
    )


@pytest.mark.parametrize("file", ["entry_points_text", "metadata"])
def test_bytes_that_are_not_utf_8(good, site, file):
    texts = {
        "entry_points_text": b"[core.loggers]\nbad = core_bad:Bad\n",
        "metadata": b"Name: core-bad\n",
    }
    make_distribution(site, "core-bad", **{**texts, file: texts[file] + b"\xff\xfe\n"})
    found = scan()
    assert names(found) == ["core-good"]
    assert "can't be read: UnicodeDecodeError" in problem(found, "core-bad").detail


@pytest.mark.parametrize("missing", ["Name", "Version"])
def test_metadata_that_lacks_a_field(site, missing):
    lines = [line for line in ("Name: core-bad", "Version: 1.0") if not line.startswith(missing)]
    make_distribution(site, "core-bad", entry_points_text=GOOD, metadata="\n".join(lines))
    found = scan()
    assert names(found) == []
    assert f"{missing} ''" in problem(found, "core-bad").detail


def test_what_pip_left_of_an_interrupted_uninstall(site):
    make_distribution(site, "core-good", "2.0", GOOD)
    make_distribution(site, "core-good", "1.0", GOOD, folder="~ore_good-1.0.dist-info")
    found = scan()
    assert [(provider.name, provider.version) for provider in found.providers] == [
        ("core-good", "2.0")
    ]
    assert found.problems == ()


def test_the_first_copy_on_the_path_hides_the_others(site, tmp_path):
    make_distribution(site, "core-good", "1.0", GOOD)
    make_distribution(
        tmp_path / "later", "Core.Good", "2.0", GOOD, folder="core.good-2.0.dist-info"
    )
    sys.path.append(str(tmp_path / "later"))
    found = scan()
    assert [(provider.name, provider.version) for provider in found.providers] == [
        ("core-good", "1.0")
    ]
    hidden = problem(found, "core-good")
    assert hidden.shadowed
    assert (
        hidden.detail
        == f"2.0 in {tmp_path / 'later'} is hidden by 1.0 in {site}; uninstall one of them"
    )


def test_a_first_copy_that_offers_nothing_hides_one_that_does(site, tmp_path):
    make_distribution(site, "core-good", "0.9")
    make_distribution(tmp_path / "later", "core-good", "1.0", GOOD)
    sys.path.append(str(tmp_path / "later"))
    found = scan()
    assert names(found) == []
    assert problem(found, "core-good").shadowed


def test_one_folder_seen_twice_is_no_second_copy(site, tmp_path):
    make_distribution(site, "core-good", "1.0", GOOD)
    os.symlink(site, tmp_path / "lib64")
    sys.path += [str(tmp_path / "lib64"), str(site)]
    found = scan()
    assert names(found) == ["core-good"]
    assert found.problems == ()


@pytest.mark.parametrize("alias", ["with blank", "with:colon", "with,comma", *LOOK_ALIKES])
def test_an_alias_that_nobody_could_write(site, alias):
    make_distribution(
        site, "core-bad", entry_points_text=f"[core.loggers]\n{alias} = core_bad:Bad\n"
    )
    found = scan()
    assert all(provider.specs == () for provider in found.providers)
    detail = problem(found, "core-bad").detail
    assert detail.startswith(
        f"the alias {alias!r} in core.loggers is left out: expected ASCII letters, digits, "
    )
    assert LOOK_ALIKES.get(alias, "got '") in detail


def test_a_distribution_cannot_pose_as_core(site):
    make_distribution(site, "core-training", "9.9", "[core.loggers]\ncsv = core_evil:Evil\n")
    assert names(scan()) == []


def test_egg_info_of_older_tools(site):
    egg = site / "core_old.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: core-old\nVersion: 0.3\n")
    (egg / "entry_points.txt").write_text("[core.loggers]\nold = core_old:Old\n")
    (egg / "requires.txt").write_text("core-training<0.1\ntorch\n")
    (provider,) = scan().providers
    assert (provider.name, provider.version, provider.requires) == (
        "core-old",
        "0.3",
        ("core-training<0.1",),
    )


def test_a_distribution_in_a_zip_archive(site, tmp_path):
    make_distribution(tmp_path / "tree", "core-zipped", entry_points_text=GOOD)
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "tree")
    sys.path.append(archive)
    found = scan()
    assert names(found) == ["core-zipped"]
    assert found.problems == ()
