"""The walls that import-linter can't express."""

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

from core import Session, Strategy
from support.syntax_nodes import syntax_nodes

ROOT = Path(__file__).parents[2]
PLUGIN_FILES = sorted(ROOT.glob("plugins/*/core_*/**/*.py"))


TENANT_FILES = sorted(ROOT.glob("plugins/training/core_training/**/*.py"))
STORAGE_FILES = sorted(ROOT.glob("core/checkpoint/**/*.py"))
DIMENSION_FILES = sorted(ROOT.glob("plugins/parallel/core_parallel/**/*.py"))
LIGHTNING_FILES = sorted(ROOT.glob("plugins/lightning/core_lightning/**/*.py"))
ROOMS = {
    "core_training": (TENANT_FILES, "rooms"),
    "core.checkpoint": (STORAGE_FILES, "storage"),
    "core_parallel": (DIMENSION_FILES, "dimensions"),
    "core_lightning": (LIGHTNING_FILES, "lightning"),
}
"""By package its files, and import-linter's contract that says on which floor each room is."""
INSIDES = {"core.checkpoint.building_blocks"}
"""Public modules within a public package, for authors who build on what it has."""


def imported_names(path, root="core"):
    """The dotted names that a file imports from a package, such as `core.contract.Strategy`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == root)


def imports_of(files, root="core"):
    """Each of the files with each name that it imports from a package."""
    assert files
    return [(path, dotted) for path in files for dotted in imported_names(path, root)]


def public_names(module):
    """The `__all__` of `core`, of a public subpackage, or of what is public within one."""
    return exported_names(module) if module.count(".") < 2 or module in INSIDES else ()


@functools.cache
def exported_names(module):
    """The `__all__` of a module, read without an import."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and "__all__" in ast.dump(node.targets[0])
    ]
    return ast.literal_eval(values[0]) if values else ()


def test_a_plugin_imports_public_names_only():
    """Those in the `__all__` of `core` and of its public subpackages."""
    for path, dotted in imports_of(PLUGIN_FILES):
        module, _, name = dotted.rpartition(".")
        message = (
            f"{path}: {dotted} is not public. If a backend needs it, extend core.contract, for all"
        )
        assert name in public_names(module), message


def test_the_trainer_imports_of_the_rest_what_a_stranger_could():
    """Public names of public packages, also where only a type checker looks: a stranger can write
    another Trainer.
    """
    for path, dotted in imports_of(TENANT_FILES):
        module, _, name = dotted.rpartition(".")
        message = (
            f"{path}: {dotted} is not public. If a trainer needs it, give it a public name, for all"
        )
        assert name in public_names(module), message


def test_the_trainer_looks_into_no_object_of_the_rest():
    """An attribute with an underscore is one of the Trainer's own."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in TENANT_FILES]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    kept = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    kept |= {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }  # of a class
    asked = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
    }
    # The private names that the Trainer takes from torchmetrics, the interpreter, named tuples and
    # torch, whose tensors count changes by it.
    foreign = {"_forward_cache", "_getframe", "_make", "_version"}
    assert asked - defined - kept - foreign == set()


def floors_of(contract_id):
    """A floor for each room, 0 the highest, as import-linter's contract has them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    [rooms] = [contract for contract in config["contracts"] if contract["id"] == contract_id]
    return {room: floor for floor, line in enumerate(rooms["layers"]) for room in line.split(" | ")}


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_downwards_for_types_too(package):
    """Import-linter doesn't see imports that only type checkers run; by these, all modules would
    know each other.
    """
    files, contract_id = ROOMS[package]
    floors, depth = floors_of(contract_id), package.count(".") + 1
    for path, dotted in imports_of(files, package.split(".")[0]):
        names = path.relative_to(ROOT).with_suffix("").parts
        room = names[names.index(package.split(".")[-1]) + 1]
        other = [*dotted.split("."), ""][depth]
        if room != "__init__" and dotted.startswith(f"{package}.") and other != room:
            message = f"{path}: {dotted} is on a floor above, or beside. Move what both need down"
            assert floors[other] > floors[room], message


def test_rings_of_modules_are_small():
    """Modules that import each other, if only for types, are one module to a reader."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in ROOT.glob("core/**/*.py")
    }
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    imports = {
        name: {
            dotted if dotted in files else dotted.rpartition(".")[0]
            for dotted in imported_names(path)
        }
        & set(files)
        for name, path in files.items()
    }
    reached = {}
    for name in files:
        seen, left = set(), [name]
        while left:
            new = imports[left.pop()] - seen
            seen |= new
            left += new
        reached[name] = seen
    rings = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in files
    }
    assert sorted(map(sorted, (ring for ring in rings if len(ring) > 3))) == [], (
        "Move what they share below them"
    )


def test_storage_has_few_rooms():
    rooms = floors_of("storage")
    assert len(rooms) <= 20, f"{len(rooms)} rooms. Put the new module into the room of its subject"


def test_the_contract_is_read_in_one_sitting():
    """No file is long, and a strategy has few members: what only the core calls is the
    session's.
    """
    sizes = {
        path.name: syntax_nodes(path.read_text(encoding="utf-8"))["nodes"]
        for path in ROOT.glob("core/contract/*.py")
    }
    assert {name: size for name, size in sizes.items() if size > 1_440} == {}
    public = [getattr(Strategy, name) for name in dir(Strategy) if not name.startswith("_")]
    assert sum(callable(member) or isinstance(member, property) for member in public) < 50
    assert Session.__final__


def test_a_name_is_one_class():
    """But for names of Lightning that core-lightning repeats."""
    homes = {}
    paths = sorted(ROOT.glob("core/**/*.py")) + PLUGIN_FILES
    for path in (path for path in paths if "core_lightning" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert twice == {}, (
        "two classes have one name: a reader who looks for one finds the other. Say in it which is "
        "meant"
    )


@pytest.mark.parametrize(
    ("folder", "package"),
    [("tests", "core"), ("plugins/training/tests", "plugins/training/core_training")],
)
def test_folders_of_tests_mirror_the_rooms(folder, package):
    """But for those whose subject isn't a room, and what several share."""
    others = {
        "by_hand",
        "conformance",
        "downstream",
        "examples",
        "macos",
        "site",
        "static",
        "support",
    }
    places = [place for place in (ROOT / folder).iterdir() if any(place.glob("*.py"))]
    folders = {place.name for place in places if place.name not in others}
    assert sorted(folder for folder in folders if not (ROOT / package / folder).is_dir()) == []


def test_the_core_knows_no_backend():
    """One data table may name backends, for error messages; its file says `known` in its name."""
    backends = re.compile(
        r"deepspeed|colossalai|horovod|hivemind|bagua|fairscale|poptorch|habana|torch_xla"
        r"|(?<![a-z])(xla|tpu|hpu|hccl|gaudi|ipu|graphcore|popdist|ray)s?(?![a-z])",
        re.IGNORECASE,
    )
    rows = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(ROOT.glob("core/**/*.py"))
        if "known" not in path.stem
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if backends.search(line)
    ]
    assert not rows, "\n".join(rows)


def test_one_module_prints_what_commands_say():
    """It escapes what would reach a terminal raw; what goes past it might not."""
    rows = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted([*ROOT.glob("core/cli/*.py"), *ROOT.glob("plugins/*/core_*/cli/*.py")])
        if path.stem != "layout"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"click\.(s?echo|style)|\bprint\(", line.replace("console.print(", ""))
    ]
    assert not rows, "\n".join(rows)


def test_no_page_installs_somebody_elses_core():
    pages = [
        path for places in ("*.md", "docs/**/*.md", "plugins/*/*.md") for path in ROOT.glob(places)
    ]
    assert len(pages) > 50
    install = re.compile(r"""pip install[^`\n]*[ '"]core([\['" ]|$)""", re.MULTILINE)
    wrong = [str(path) for path in pages if install.search(path.read_text(encoding="utf-8"))]
    assert wrong == [], (
        "the distributions are core-base and core-training; a `core` on a package index is somebody else's"
    )
