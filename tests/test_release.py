"""The release command: refused where something disagrees, built twice and equal, and what
`core doctor` compares.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from core import __version__
from core.cli.cards import files_digest
from core.cli.doctor import examine_release
from support.fake_distributions import make_distribution

ROOT = Path(__file__).parents[1]
PROJECT = """\
[project]
name = "{name}"
license = "Apache-2.0"
dependencies = {dependencies}
{more}
"""


@pytest.fixture
def release(monkeypatch, tmp_path):
    """The module, on sources of a core and a plugin that are ready."""
    monkeypatch.syspath_prepend(str(ROOT / "plugins"))
    import release
    import wheels

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    more = '[project.entry-points."core.strategies"]\nacme = "core_acme:Acme"'
    write(
        "pyproject.toml",
        PROJECT.format(name="core-base", dependencies='["torch>=2.9"]', more=""),
    )
    write("core/_version.py", '__version__ = "0.3.1"\n')
    dependencies = '["core-base>=0.3,<0.4"]'
    write(
        "plugins/acme/pyproject.toml",
        PROJECT.format(name="core-acme", dependencies=dependencies, more=more),
    )
    write("plugins/acme/core_acme/_version.py", '__version__ = "0.1.7"\n')
    write("docs/support.md", "| `acme` | core-acme | CPU |\n")
    write("CHANGELOG.md", "## 0.3.1 (2026-01-31)\n")
    write("changelog/README.md", "")
    for module in (release, wheels):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    release.write = write
    yield release
    for name in ("release", "wheels"):
        del sys.modules[name]


def test_what_is_ready_is_released(release):
    assert [*release.disagreements()] == []


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        (
            "core/_version.py",
            '__version__ = "0.4.0"\n',
            "requires core-base>=0.3,<0.4, and this is 0.4.0",
        ),
        ("core/_version.py", '__version__ = "0.3.2"\n', "no dated entry for 0.3.2"),
        ("CHANGELOG.md", "## 0.3.1 (unreleased)\n", "no dated entry for 0.3.1"),
        (
            "changelog/+new.bugfix.md",
            "Something.\n",
            "1 fragments in changelog/ are in no entry yet",
        ),
        ("docs/support.md", "", "docs/support.md has no row of core-acme"),
        (
            "plugins/acme/pyproject.toml",
            PROJECT.format(name="core-acme", dependencies='["core-base>=0.3"]', more=""),
            "its upper bound is the next minor release",
        ),
        (
            "plugins/acme/pyproject.toml",
            PROJECT.format(
                name="core-acme",
                dependencies="[]",
                more='optional-dependencies.test = ["core-base<0.3"]',
            ),
            "core-acme requires core-base<0.3, and this is 0.3.1",
        ),
    ],
)
def test_what_disagrees_is_refused(release, path, text, words):
    release.write(path, text)
    assert any(words in problem for problem in release.disagreements())


def test_builds_that_differ_are_named(release, tmp_path):
    for place, text in (("first", "a"), ("second", "b")):
        release.write(f"{place}/same.whl", "")
        release.write(f"{place}/other.whl", text)
    release.write("second/more.whl", "")
    assert release.differences(tmp_path / "first", tmp_path / "second") == [
        "more.whl",
        "other.whl",
        "other.whl",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)  # it builds everything twice, and some of it a third time
def test_a_release_is_built_twice_and_found_again_where_it_is_installed(tmp_path):
    def verified(path, site):
        """What `core doctor` finds where the folder comes first: state and detail by subject."""
        command = [sys.executable, "-P", "-m", "core", "doctor", "--json", "--verify", path]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True
        )
        return {row["subject"]: (row["state"], row["detail"]) for row in json.loads(done.stdout)}

    def assert_builds_again(dist, name, folder):
        """The sdist alone makes a wheel of the same files."""
        (sdist,) = dist.glob(f"index/{name}-*.tar.gz")
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, sdist], check=True)
        (wheel,) = folder.glob(f"{name}-*.whl")
        with (
            zipfile.ZipFile(wheel) as ours,
            zipfile.ZipFile(dist / "index" / wheel.name) as released,
        ):
            assert sorted(ours.namelist()) == sorted(released.namelist())

    if not (ROOT / ".git").exists():
        pytest.skip("a release is built of a commit")
    dist = tmp_path / "dist"
    command = [sys.executable, ROOT / "plugins" / "release.py", dist, "--draft"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    number = len([*ROOT.glob("plugins/*/pyproject.toml")]) + 1
    assert f"{number} distributions, built twice and equal" in done.stdout
    wheel = next(dist.glob("index/core_ddp-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition("/")[2] for name in archive.namelist() if ".dist-info/" in name}
        (sbom,) = [name for name in archive.namelist() if name.endswith("sboms/sbom.cdx.json")]
        parts = json.loads(archive.read(sbom))
    assert "licenses/LICENSE" in names
    assert parts["metadata"]["component"]["name"] == "core-ddp"
    assert [part["name"] for part in parts["components"]] == ["core-training", "torch"]
    assert_builds_again(dist, "core_training", tmp_path / "again")
    assert_builds_again(dist, "core_ddp", tmp_path / "again")
    assert 'path = "index/core_ddp-' in (dist / "pylock.toml").read_text()
    assert (
        f"core-ddp @ {(dist / 'index').as_uri()}/core_ddp-"
        in (dist / "constraints.txt").read_text()
    )
    squatted = ["--find-links", squatter(tmp_path / "squatter"), "core-ddp"]
    assert installed(tmp_path / "theirs", *squatted) == ["core_ddp-99.0.dist-info"], (
        "pip takes the highest version"
    )
    ours = installed(tmp_path / "site", "-c", dist / "constraints.txt", *squatted)
    assert ours == [wheel.name.replace("-py3-none-any.whl", ".dist-info")], (
        "the constraints name the file"
    )
    found = verified(dist / "release.json", tmp_path / "site")
    assert re.fullmatch(r"its \d+ files are those of 0\.\d+\.\d+", found["release core-ddp"][1])
    (tmp_path / "site" / "core_ddp" / "late.py").write_text("changed = True\n")
    state, detail = verified(dist / "release.json", tmp_path / "site")["release core-ddp"]
    assert (state, detail) == ("broken", "not as released: core_ddp/late.py. Install it again.")


def squatter(folder):
    """A folder with a core-ddp that isn't ours, of a version above all of ours."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "core_ddp-99.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "core_ddp-99.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: core-ddp\nVersion: 99.0\n",
        )
        wheel.writestr(
            "core_ddp-99.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("core_ddp-99.0.dist-info/RECORD", "")
    return folder


def installed(folder, *arguments):
    """What pip has installed into a folder, without an index."""
    options = ["--quiet", "--no-index", "--no-deps", "--target", folder]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *arguments], check=True)
    return [path.name for path in folder.glob("*.dist-info")]


def test_another_version_is_told(tmp_path):
    path = tmp_path / "release.json"
    path.write_text(json.dumps({"core-base": {"version": "99.0", "files": {}}, "core-none": {}}))
    found = [(finding.subject, finding.state, finding.detail) for finding in examine_release(path)]
    assert found == [
        ("release core-base", "broken", f"it has 99.0, and {__version__} is installed"),
        ("release", "absent", "not installed: core-none"),
    ]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path with a distribution of a release, whose list lies beside it."""
    folder = tmp_path / "site"
    info = make_distribution(folder, "core-acme", modules={"core_acme.strategy": ""})
    (info / "RECORD").write_text("brought.pth,,\n")
    for name in ("brought.pth", "_virtualenv.pth"):
        (folder / name).write_text("import os\n")
    (folder / "paths.pth").write_text("/somewhere\n")
    files = {
        f"core_acme/{name}": hashlib.sha256(b"").hexdigest()
        for name in ("__init__.py", "strategy.py")
    }
    (tmp_path / "release.json").write_text(
        json.dumps({"core-acme": {"version": "1.0", "files": files}})
    )
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("core_acme/__pycache__/strategy.cpython-311.pyc", "ok its 2 files are those of 1.0"),
        ("core_acme/late.py", "broken the release doesn't have core_acme/late.py. Delete it."),
        (
            "core_acme/extra/__init__.py",
            "broken the release doesn't have core_acme/extra/__init__.py. Delete it.",
        ),
        (
            "core_acme/strategy.so",
            "broken the release doesn't have core_acme/strategy.so. Delete it.",
        ),
        (
            "core_acme/strategy.py",
            "broken not as released: core_acme/strategy.py. Install it again.",
        ),
        ("../first/core_acme/__init__.py", "broken {path} hides it. Rename or delete that."),
        ("late.pth", "broken no package has brought {path}, which Python runs. Delete it."),
    ],
)
def test_what_the_release_does_not_have_is_named(site, tmp_path, monkeypatch, path, expected):
    monkeypatch.syspath_prepend(tmp_path / "first")
    added = (site / path).resolve()
    added.parent.mkdir(parents=True, exist_ok=True)
    added.write_text("import os\n")
    found = [f"{each.state} {each.detail}" for each in examine_release(tmp_path / "release.json")]
    assert expected.format(path=added) in found
    assert ("broken" in " ".join(found)) is expected.startswith("broken")


def test_a_link_to_a_folder_is_part_of_a_package(site, tmp_path):
    before = files_digest.__wrapped__(site / "core_acme")
    (site / "core_acme" / "extra").symlink_to(tmp_path)
    [finding] = examine_release(tmp_path / "release.json")
    assert finding.detail == "the release doesn't have core_acme/extra. Delete it."
    assert files_digest.__wrapped__(site / "core_acme") != before


def test_what_an_installed_distribution_requires_is_told(tmp_path, monkeypatch):
    make_distribution(
        tmp_path, "core-acme", requires=["core-none<2,>=1", "core-extra; extra == 'dev'"]
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "release.json"
    none = {"core-none": {}, "core-extra": {}}
    path.write_text(json.dumps({"core-acme": {"version": "1.0", "files": {}}} | none))
    found = {finding.subject: (finding.state, finding.detail) for finding in examine_release(path)}
    assert found == {
        "release core-acme": ("ok", "its 0 files are those of 1.0"),
        "release core-none": ("broken", "not installed, and core-acme requires it. Install it."),
        "release": ("absent", "not installed: core-none, core-extra"),
    }


def test_wheels_have_a_list_of_their_files_beside_them(tmp_path, monkeypatch):
    """Those of README's install, which is no release."""
    monkeypatch.syspath_prepend(str(ROOT / "plugins"))
    import wheels

    monkeypatch.delitem(sys.modules, "wheels")
    monkeypatch.setattr(wheels, "sources_below", lambda _: [ROOT / "plugins" / "report"])
    monkeypatch.setattr(wheels, "make_builder", lambda: nullcontext(sys.executable))
    monkeypatch.setattr(sys, "argv", ["wheels.py", str(tmp_path)])
    wheels.main()
    released = json.loads((tmp_path / "release.json").read_text())
    assert installed(tmp_path / "site", "-c", tmp_path / "constraints.txt", "core-report")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = {
        finding.subject: finding.detail for finding in examine_release(tmp_path / "release.json")
    }
    assert found == {
        "release core-report": f"its {len(released['core-report']['files'])} files are those of "
        "0.1.0"
    }


def test_an_environment_gets_new_wheels_where_a_file_of_theirs_has_changed(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "plugins"))
    import install

    source = tmp_path / "acme"

    def last_change_after(path, time_s):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("")
        for each in (source / path, *(source / path).parents):
            os.utime(each, (time_s, time_s))
        return install.last_change(source)

    try:
        for time_s, path in enumerate(("core_acme/a/b.py", "pyproject.toml", "README.md"), 1):
            assert last_change_after(path, time_s) == time_s, path
        for path in ("tests/test_a.py", "core_acme/__pycache__/a.pyc"):
            assert last_change_after(path, 3) == 3, path
        assert install.is_met("pytest>=1")
        assert install.is_met("core-acme")
        assert not install.is_met("pytest>=999")
    finally:
        for name in ("install", "wheels"):
            del sys.modules[name]


def project(folder):
    """The table `project` of a distribution's source."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
