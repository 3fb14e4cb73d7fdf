"""Builds a release of everything: what an index gets, and what its users compare it with.

    python plugins/release.py dist            # of this commit; refused where something disagrees
    python plugins/release.py dist --draft    # the same, but what disagrees is only listed

`dist/index` has wheels and sdists, each with its license and list of parts (SBOM), built twice and
equal byte for byte. Beside it, `constraints.txt` takes this release from these files, `pylock.toml`
has everything that its packages for CPUs need, and `release.json` is what `core doctor --verify`
compares an installation with.
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from wheels import (
    ROOT,
    digest,
    make_builder,
    read_project,
    sources_below,
    write_constraints,
    write_digests,
)

SBOM = "sbom.cdx.json"
HEADING = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


def main() -> None:
    """Build it into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="new, or empty")
    parser.add_argument("--draft", action="store_true", help="build in spite of what disagrees")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(
            f"{folder} isn't empty, and a release has nothing of another: name a new folder."
        )
    if problems := [*disagreements()]:
        print("Not ready for a release:", *problems, sep="\n- ")
        if not arguments.draft:
            raise SystemExit(1)
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
        make_builder() as python,
    ):
        builds = [build(Path(place), python) for place in (first, second)]
        if differing := differences(*builds):
            raise SystemExit(
                f"Two builds differ, so nobody could say what is in them: {', '.join(differing)}."
            )
        index = folder / "index"
        shutil.copytree(builds[0], index)
        wheels = sorted(index.glob("*.whl"))
        constraints = write_constraints(folder, wheels)
        write_digests(folder, wheels)
        lock(python, constraints, folder / "pylock.toml")
    print(f"{len(wheels)} distributions, built twice and equal, are in {index}.")


def disagreements() -> Iterator[str]:
    """Sentences on what the sources say in two places and can't both be true."""
    versions = {project["name"]: version_of(source) for source, project in projects()}
    own = Version(versions["core-base"])
    support = ROOT.joinpath("docs/support.md").read_text(encoding="utf-8")
    for _, project in projects():
        extras = project.get("optional-dependencies", {}).values()
        for line in chain(project.get("dependencies", []), *extras):
            requirement = Requirement(line)
            if requirement.name not in versions or requirement.name == project["name"]:
                continue
            if not requirement.specifier.contains(versions[requirement.name], prereleases=True):
                yield (
                    f"{project['name']} requires {line}, and this is {versions[requirement.name]}."
                )
            next_minor = f"{own.major}.{own.minor + 1}.0"
            if requirement.name in (
                "core-base",
                "core-training",
            ) and requirement.specifier.contains(next_minor):
                yield (
                    f"{project['name']} requires {line}: its upper bound is the next minor release."
                )
        has_strategies = "core.strategies" in project.get("entry-points", {})
        if has_strategies and f"| {project['name']} |" not in support:
            yield (
                f"docs/support.md has no row of {project['name']}: "
                "tests/conformance/write_support.py makes it."
            )
    newest = HEADING.search(ROOT.joinpath("CHANGELOG.md").read_text(encoding="utf-8"))
    if newest is None or newest[1] != str(own):
        yield (
            f"CHANGELOG.md has no dated entry for {own}: `towncrier build --version {own}` makes "
            "it."
        )
    if fragments := [path.name for path in ROOT.glob("changelog/*.md") if path.name != "README.md"]:
        yield (
            f"{len(fragments)} fragments in changelog/ are in no entry yet: `towncrier build` "
            "moves them."
        )
    if subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True
    ).stdout:
        yield "the checkout has changes that no commit has: they won't be in the release."


def projects() -> Iterator[tuple[Path, dict[str, object]]]:
    """The folder of each distribution of ours, and the table `project` of its metadata."""
    for source in sources_below(ROOT):
        yield source, read_project(source)


def version_of(source: Path) -> str:
    """The version of a distribution, from its module."""
    (path,) = source.glob("core*/_version.py")
    return re.search(r'^__version__ = "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE)[1]


def build(place: Path, python: str) -> Path:
    """Build the commit that is checked out, in this folder; returns where wheels and sdists are."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", place], input=archive, check=True)
    built = place / "built"
    for source in sources_below(place):
        if source != place:
            shutil.copy(place / "LICENSE", source)
            add_test_support(source, place)
        add_sbom(source)
        command = [
            python,
            "-P",
            "-m",
            "hatchling",
            "build",
            "-t",
            "sdist",
            "-t",
            "wheel",
            "-d",
            str(built),
        ]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{source.name} can't be built.\n{done.stdout}{done.stderr}")
    return built


def add_test_support(source: Path, place: Path) -> None:
    """Copy the files that a plugin's tests share with others beside them: those of its sdist run by
    themselves.
    """
    shutil.copy(place / "conftest.py", source)
    shutil.copytree(place / "tests" / "support", source / "tests" / "support")
    own, shared = source / "pyproject.toml", (place / "pyproject.toml").read_text(encoding="utf-8")
    settings = re.search(
        r"^\[tool\.pytest\.ini_options\]\n.*?(?=^\[tool\.)", shared, re.MULTILINE | re.DOTALL
    )[0]
    settings = settings.replace('"tests", "plugins"', '"tests"')
    own.write_text(own.read_text(encoding="utf-8").rstrip() + f"\n\n{settings}", encoding="utf-8")


def add_sbom(source: Path) -> None:
    """Write the list of parts of a distribution, as CycloneDX has it, where its build takes it
    along.
    """
    path = source / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    name, version = project["name"], version_of(source)
    required = [Requirement(line) for line in project.get("dependencies", [])]
    component = {
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": f"pkg:pypi/{name}@{version}",
    }
    component |= {
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"id": project["license"]}}],
    }
    others = [
        {"type": "library", "name": one.name, "bom-ref": f"pkg:pypi/{one.name}"} for one in required
    ]
    bom = {
        **{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1},
        **{"metadata": {"component": component}, "components": others},
        "dependencies": [
            {"ref": component["bom-ref"], "dependsOn": sorted(one["bom-ref"] for one in others)}
        ],
    }
    (source / SBOM).write_text(json.dumps(bom, indent=1, sort_keys=True), encoding="utf-8")
    table = "[tool.hatch.build.targets.wheel]\n"
    path.write_text(text.replace(table, f'{table}sbom-files = ["{SBOM}"]\n'), encoding="utf-8")


def differences(first: Path, second: Path) -> list[str]:
    """The names of files that two builds don't have alike."""
    digests = [
        {path.name: digest(path.read_bytes()) for path in build.iterdir()}
        for build in (first, second)
    ]
    return sorted(name for name, _ in digests[0].items() ^ digests[1].items())


def lock(python: str, constraints: Path, path: Path) -> None:
    """Write the exact releases for all distributions of ours that need torch, and no other large
    library.
    """
    light = [
        str(each["name"])
        for _, each in projects()
        if all(map(is_light, each.get("dependencies", [])))
    ]
    pins = ["-c", str(constraints), "-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [python, "-m", "pip", "--quiet", "lock", *pins, "-o", str(path), *light], check=True
    )
    # Our own files by their place beside it, so that the folder can be moved.
    ours = f'url = "{path.parent.as_uri()}/'
    path.write_text(path.read_text(encoding="utf-8").replace(ours, 'path = "'), encoding="utf-8")


def is_light(line: str) -> bool:
    """True for a requirement that core itself has, or a distribution of ours."""
    name = Requirement(line).name
    return name in LIGHT or name.startswith("core-")


LIGHT = {
    Requirement(line).name
    for source, each in projects()
    if source == ROOT
    for line in each["dependencies"]
}


if __name__ == "__main__":
    main()
