"""The pages of the site that aren't in docs/, as a hook of MkDocs (`hooks` in mkdocs.yml).

Pages have the paths that they have in the repository, so that links between them are the ones that a code host follows.
Code that a page links to becomes a page too. The API has a page for each package of public names.
"""

import os
import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
MARKDOWN = ["README.md", "CONTRIBUTING.md", "docs/**/*.md", "plugins/*/README.md"]
LINK = re.compile(r"(\[[^\]]*\]\()([^)#\s:]+)(\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PACKAGES = ["core", "core_testing"]
BOOSTS = {"api/": 0.2, "plugins/": 0.4, "docs/contracts/": 0.4, "CONTRIBUTING": 0.4, "docs/": 1.0}
"""By the beginning of a page's path, the first that fits, how much a word in it counts in the search."""
MAIN = ("Trainer", "Fabric", "Module", "DataModule")
"""The names of `core` that stand first on its page."""
GUIDES = ("Start", "How to")
"""The sections of the navigation whose pages count twice as much: they say how something is done."""


class Api:
    """The public names, read from the sources without an import.

    Args:
        root: the folder of the repository.
    """

    def __init__(self, root: Path) -> None:
        self.loader = griffe.GriffeLoader(search_paths=[root, root / "plugins/testing"])
        tops = [self.loader.load(package) for package in PACKAGES]
        self.loader.resolve_aliases(implicit=False, external=False)
        core = tops[0]
        parts = [module for name, module in sorted(core.modules.items()) if is_public(name, module)]
        self.public_modules: dict[str, griffe.Module] = {module.path: module for module in [core, *parts, *tops[1:]]}
        self.names = list(self.list_names())
        self.homes: dict[str, str] = {}
        """By path of an object the public module on whose page it stands."""

        missing: set[str] = set()
        for owner, _, target in self.names:
            # What `core` hands out stands on the page of the package that holds it.
            held = target.path.startswith(f"{owner}.")
            best = self.homes.get(target.path)
            if best is None or (held, owner.count(".")) > (target.path.startswith(f"{best}."), best.count(".")):
                self.homes[target.path] = owner
            missing.update(self.undocumented(target.path, target))
        if missing:
            raise PluginError(f"Public names without a docstring: {', '.join(sorted(missing))}")

    def list_names(self) -> Iterator[tuple[str, str, griffe.Object]]:
        """Every public name: its module, the name, and what it stands for."""
        for path, module in self.public_modules.items():
            for name in map(str, module.exports or ()):
                if not name.startswith("__"):
                    yield path, name, self.target(module, name)

    def target(self, owner: griffe.Module, name: str) -> griffe.Object:
        """The object that a public name stands for, by the module that exports it: stars and lazy exports hide it."""
        for module in [owner, *self.modules(owner)]:
            if name in module.members and name in map(str, module.exports or ()):
                member = module.members[name]
                try:
                    return member.final_target if isinstance(member, griffe.Alias) else member
                except griffe.AliasResolutionError:
                    continue
        raise PluginError(f"{owner.path}.{name} is in `__all__`, and no module of the package has it")

    def modules(self, owner: griffe.Module) -> Iterator[griffe.Module]:
        """All modules of the package that a public module belongs to, those that are near the root first."""
        level = [owner.package]
        while level:
            yield from level
            level = [child for module in level for child in module.modules.values() if not child.is_alias]

    @staticmethod
    def undocumented(name: str, target: griffe.Object) -> list[str]:
        """The name, if it has no docstring, and those methods and properties of a class that have none."""
        methods = {
            f"{name}.{key}": member
            for key, member in (target.members.items() if target.is_class else ())
            if not (key.startswith("_") or member.is_alias) and (member.is_function or "property" in member.labels)
        }
        return [key for key, member in {name: target, **methods}.items() if not member.has_docstring]

    def page(self, owner: str) -> str:
        """The page of a public module in Markdown."""
        held = [(name, target) for path, name, target in self.names if path == owner]
        own = [(name, target) for name, target in held if self.homes[target.path] == owner]
        docstring = self.public_modules[owner].docstring
        blocks = [f"# {owner}", docstring.value if docstring else ""]
        if elsewhere := [(name, target) for name, target in held if self.homes[target.path] != owner]:
            rows = [
                f"| [`{name}`]({self.homes[target.path]}.md#{target.path}) | {summary(target)} |"
                for name, target in sorted(
                    elsewhere, key=lambda row: (MAIN.index(row[0]) if row[0] in MAIN else len(MAIN), row[0].lower())
                )
            ]
            blocks.append("\n".join(["| name | |", "| --- | --- |", *rows]))
        imports: dict[str, list[str]] = {}
        before = len(blocks)
        for name, target in sorted(own, key=lambda row: row[0].lower()):
            shortest = min((path for path, _, other in self.names if other.path == target.path), key=len)
            imports.setdefault(shortest, []).append(name)
            blocks.append(f"::: {target.path}")
        lines = [f"from {path} import {', '.join(names)}" for path, names in sorted(imports.items())]
        wrapped = [line if len(line) < 88 else bracketed(line) for line in lines]
        blocks.insert(before, "\n".join(["```python", *wrapped, "```"]) if wrapped else "")
        return "\n\n".join(blocks)


def is_public(name: str, module: griffe.Module | griffe.Alias) -> bool:
    """Whether a module of `core` is public."""
    return not name.startswith("_") and not module.is_alias


def bracketed(line: str) -> str:
    """An import, over several lines."""
    head, _, names = line.partition(" import ")
    filled = textwrap.fill(names, 84, initial_indent="    ", subsequent_indent="    ")
    return f"{head} import (\n{filled},\n)"


def summary(target: griffe.Object) -> str:
    """The first paragraph of a docstring, for a cell of a table."""
    text = target.docstring.value if target.docstring else ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """MkDocs calls it first. Reads the API, and gives it a place in the navigation."""
    api = Api(ROOT)
    config.extra["api"] = {f"api/{owner}.md": api.page(owner) for owner in api.public_modules}
    sections: Any = next(section["Reference"] for section in config.nav or () if "Reference" in section)
    next(entry for entry in sections if "API" in entry)["API"] = [
        {path.removeprefix("api/").removesuffix(".md"): path} for path in config.extra["api"]
    ]
    if "MIKE_DOCS_VERSION" in os.environ:  # the list of versions is there only where mike publishes
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls it with what is in docs/. Gives all pages the paths that they have in the repository."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    pages = [path for pattern in MARKDOWN for path in sorted(ROOT.glob(pattern))]
    sources = sorted({source for page in pages for source in linked_code(page)})
    return Files(
        [
            *theme,
            *(File.generated(config, str(page.relative_to(ROOT)), abs_src_path=str(page)) for page in pages),
            File.generated(config, "docs/site/extra.css", abs_src_path=str(ROOT / "docs/site/extra.css")),
            *(
                File.generated(config, f"{source.relative_to(ROOT)}.md", content=code_page(source))
                for source in sources
            ),
            *(File.generated(config, path, content=text) for path, text in config.extra["api"].items()),
        ]
    )


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """MkDocs calls it for each page. Leads the links to code to the pages of that code, and ranks it for the search."""
    page.meta.setdefault("search", {}).setdefault("boost", boost(page))
    folder = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        is_code_file = is_code(ROOT / posixpath.normpath(posixpath.join(folder, match[2])))
        return f"{match[1]}{match[2].rstrip('/')}.md{match[3]}" if is_code_file else match[0]

    return LINK.sub(lead, markdown)


def boost(page: Page) -> float:
    """How much the words of a page count in the search, besides where they stand in it."""
    is_guide = any(section.title in GUIDES for section in page.ancestors)
    own = next((number for start, number in BOOSTS.items() if page.file.src_uri.startswith(start)), 1.0)
    return own * 2 if is_guide else own


def linked_code(page: Path) -> Iterator[Path]:
    """The files and folders that a page links to and that aren't pages themselves."""
    for _, target, _ in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = (page.parent / target).resolve()
        if is_code(path):
            yield path


def is_code(path: Path) -> bool:
    """Whether a link leads to something of the repository that has no page of its own."""
    return path.is_relative_to(ROOT) and path.exists() and path.suffix != ".md"


def code_page(path: Path) -> str:
    """A file, or the Python files of a folder, as a page. The search leaves it out."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    texts = {file.relative_to(ROOT): file.read_text(encoding="utf-8") for file in files}
    blocks = [f"## {name}\n\n````{name.suffix[1:]}\n{text}````" for name, text in texts.items()]
    return "\n\n".join(["---\nsearch:\n  exclude: true\n---", f"# {path.relative_to(ROOT)}", *blocks])
