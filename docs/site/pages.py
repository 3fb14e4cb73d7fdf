"""The pages of the site that aren't in docs/, as a hook of MkDocs (`hooks` in mkdocs.yml).

Pages have the paths that they have in the repository, so that links between them are the ones that
a code host follows. Code that a page links to becomes a page too. The API has a page for each
package of public names.
"""

import html
import json
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
MARKDOWN = [
    "README.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "plugins/*/README.md",
]
MARKDOWN += ["tests/downstream/diloco/README.md"]
LINK = re.compile(r"(\[[^\]]*\]\()([^)#\s:]+)(\))")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PLUGINS = ["training", "neighbour", "plan", "resilience", "testing", "weights"]
"""The plugins whose public names have pages."""
PACKAGES = ["core", *map("core_{}".format, PLUGINS)]
BOOSTS = {"api/": 0.2, "plugins/": 0.4, "docs/contracts/": 0.4, "CONTRIBUTING": 0.4, "docs/": 1.0}
"""By the beginning of a page's path, the first that fits, how much a word in it counts in the
search.
"""
MAIN = ("Trainer", "Fabric", "Module", "DataModule")
"""The names of `core` that stand first on its page."""
GUIDES = ("Start", "How to")
"""The sections of the navigation whose pages count twice as much: they say how something is
done.
"""


class Api:
    """The public names, read from the sources without an import.

    Args:
        root: the folder of the repository.
    """

    def __init__(self, root: Path) -> None:
        self.loader = griffe.GriffeLoader(search_paths=[root, *sorted(root.glob("plugins/*"))])
        tops = [self.loader.load(package) for package in PACKAGES]
        self.loader.resolve_aliases(implicit=False, external=False)
        core = tops[0]
        parts = [module for name, module in sorted(core.modules.items()) if is_public(name, module)]
        self.public_modules: dict[str, griffe.Module] = {
            module.path: module for module in [core, *parts, *tops[1:]]
        }
        self.names = list(self.list_names())
        self.homes: dict[str, str] = {}
        """By path of an object the public module on whose page it stands."""

        missing: set[str] = set()
        for owner, _, target in self.names:
            # What `core` hands out stands on the page of the package that holds it.
            held = target.path.startswith(f"{owner}.")
            best = self.homes.get(target.path)
            if best is None or (held, owner.count(".")) > (
                target.path.startswith(f"{best}."),
                best.count("."),
            ):
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
        """The object that a public name stands for, by the module that exports it: stars and lazy
        exports hide it.
        """
        for module in [owner, *self.modules(owner)]:
            if name in module.members and name in map(str, module.exports or ()):
                member = module.members[name]
                try:
                    return member.final_target if isinstance(member, griffe.Alias) else member
                except griffe.AliasResolutionError:
                    continue
        raise PluginError(
            f"{owner.path}.{name} is in `__all__`, and no module of the package has it"
        )

    def modules(self, owner: griffe.Module) -> Iterator[griffe.Module]:
        """All modules of the package that a public module belongs to, those that are near the root
        first.
        """
        level = [owner.package]
        while level:
            yield from level
            level = [
                child for module in level for child in module.modules.values() if not child.is_alias
            ]

    @staticmethod
    def undocumented(name: str, target: griffe.Object) -> list[str]:
        """The name, if it has no docstring, and those methods and properties of a class that have
        none.
        """
        methods = {
            f"{name}.{key}": member
            for key, member in (target.members.items() if target.is_class else ())
            if not (key.startswith("_") or member.is_alias)
            and (member.is_function or "property" in member.labels)
        }
        return [
            key for key, member in {name: target, **methods}.items() if not member.has_docstring
        ]

    def page(self, owner: str) -> str:
        """The page of a public module in Markdown."""
        held = [(name, target) for path, name, target in self.names if path == owner]
        own = [(name, target) for name, target in held if self.homes[target.path] == owner]
        docstring = self.public_modules[owner].docstring
        blocks = [f"# {owner}", docstring.value if docstring else ""]
        if elsewhere := [
            (name, target) for name, target in held if self.homes[target.path] != owner
        ]:
            rows = [
                f"| [`{name}`]({self.homes[target.path]}.md#{target.path}) | {summary(target)} |"
                for name, target in sorted(
                    elsewhere,
                    key=lambda row: (
                        MAIN.index(row[0]) if row[0] in MAIN else len(MAIN),
                        row[0].lower(),
                    ),
                )
            ]
            blocks.append("\n".join(["| name | |", "| --- | --- |", *rows]))
        imports: dict[str, list[str]] = {}
        before = len(blocks)
        for name, target in sorted(own, key=lambda row: row[0].lower()):
            shortest = min(
                (path for path, _, other in self.names if other.path == target.path), key=len
            )
            imports.setdefault(shortest, []).append(name)
            blocks.append(f"::: {target.path}")
        lines = [
            f"from {path} import {', '.join(names)}" for path, names in sorted(imports.items())
        ]
        wrapped = [line if len(line) < 88 else bracketed(line) for line in lines]
        blocks.insert(before, "\n".join(["```python", *wrapped, "```"]) if wrapped else "")
        return "\n\n".join(blocks)

    def text(self, page: str) -> str:
        """A page as Markdown alone: signatures and docstrings in the place of the lines that name
        what stands there.
        """
        objects = {target.path: target for _, _, target in self.names}
        return re.sub(
            r"^::: (\S+)$",
            lambda match: "\n\n".join(described(objects[match[1]])),
            page,
            flags=re.MULTILINE,
        )


def described(target: griffe.Object, level: str = "##") -> Iterator[str]:
    """A name's heading, signature and docstring, then those of the public members of a class."""
    yield f"{level} {target.name}"
    if target.is_function or target.is_class:
        yield f"```python\n{target.signature()}\n```"  # type: ignore[attr-defined]
    yield target.docstring.value if target.docstring else ""
    for name, member in target.members.items() if target.is_class else ():
        if not (name.startswith("_") or member.is_alias) and member.has_docstring:
            yield from described(member, f"{level}#")


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
    config.extra["api_text"] = {path: api.text(page) for path, page in config.extra["api"].items()}
    sections: Any = next(
        section["Reference"] for section in config.nav or () if "Reference" in section
    )
    next(entry for entry in sections if "API" in entry)["API"] = [
        {path.removeprefix("api/").removesuffix(".md"): path} for path in config.extra["api"]
    ]
    if "MIKE_DOCS_VERSION" in os.environ:  # the list of versions is there only where mike publishes
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls it with what is in docs/. Gives all pages the paths that they have in the
    repository.
    """
    theme = [file for file in files if file.src_dir != config.docs_dir]
    pages = [path for pattern in MARKDOWN for path in sorted(ROOT.glob(pattern))]
    sources = sorted({source for page in pages for source in linked_code(page)})
    return Files(
        [
            *theme,
            *(
                File.generated(config, str(page.relative_to(ROOT)), abs_src_path=str(page))
                for page in pages
            ),
            *(
                File.generated(config, path, abs_src_path=str(ROOT / path))
                for path in ("docs/site/extra.css", "docs/site/cards.js", "docs/site/tables.js")
            ),
            *(
                File.generated(config, f"{source.relative_to(ROOT)}.md", content=code_page(source))
                for source in sources
            ),
            *(
                File.generated(config, path, content=text)
                for path, text in config.extra["api"].items()
            ),
        ]
    )


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """MkDocs calls it for each page. Leads the links to code to the pages of that code, and ranks
    it for the search.
    """
    page.meta.setdefault("search", {}).setdefault("boost", boost(page))
    markdown = markdown.replace("<!-- cards -->", cards_table(results()))
    folder = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        is_code_file = is_code(ROOT / posixpath.normpath(posixpath.join(folder, match[2])))
        return f"{match[1]}{match[2].rstrip('/')}.md{match[3]}" if is_code_file else match[0]

    return LINK.sub(lead, markdown)


def results() -> list[dict[str, Any]]:
    """The results in the cards of our packages, and in those that others have sent."""
    own = [ROOT / "core/card.json", *sorted(ROOT.glob("plugins/*/core_*/card.json"))]
    cards = [*own, *sorted(ROOT.glob("docs/cards/*.json"))]
    return [
        result
        for card in cards
        for result in json.loads(card.read_text(encoding="utf-8"))["results"]
    ]


def cards_table(found: list[dict[str, Any]]) -> str:
    """A table of results with a field to search in, as HTML."""
    newest = max(minor(result["versions"]["core"]) for result in found)
    lines = [
        '<input id="cards-search" class="cards-search" type="search" placeholder="strategy cuda" '
        'aria-label="Search">',
        '<div class="md-typeset__scrollwrap"><div class="md-typeset__table"><table '
        'id="cards"><thead><tr>',
        *(
            f"<th>{head}</th>"
            for head in ("backend, and what is proven", "device", "tests", "when")
        ),
        "</tr></thead><tbody>",
    ]
    for each in found:
        shown = {
            key: html.escape(str(each[key]))
            for key in ("alias", "kind", "provider", "version", "ground", "date")
        }
        proven = " ".join(
            sorted(name for name, state in each["capabilities"].items() if state == "proven")
        )
        core, outcomes = each["versions"]["core"], each["outcomes"]
        is_old = minor(core) < (newest[0], newest[1] - 1)
        faults = each.get("mutants")  # cards of older kits don't count them
        excluded = (
            f"<br><small>{faults['excluded']} of {faults['known']} faults excluded</small>"
            if faults
            else ""
        )
        lines += [
            '<tr class="cards-old">' if is_old else "<tr>",
            f"<td><b>{shown['alias']}</b>, {shown['kind']} of {shown['provider']} "
            f"{shown['version']}"
            f"<br><small>{html.escape(proven)}</small></td><td>{shown['ground']}</td>",
            f"<td>{outcomes['passed']} of {sum(outcomes.values())}{excluded}</td>",
            f"<td>{shown['date']}<br>core {html.escape(core)}</td></tr>",
        ]
    return "\n".join([*lines, "</tbody></table></div></div>"])


def minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    first, second, *_ = version.split(".")
    return int(first), int(second)


def on_post_build(config: MkDocsConfig) -> None:
    """MkDocs calls it last. Writes what programs read: each page as Markdown beside it, and their
    list, `llms.txt`.
    """
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for title, pages in sections(config.nav or []):
        lines += ["", f"## {title}", ""]
        for path in pages:
            text = config.extra["api_text"].get(path) or ROOT.joinpath(path).read_text(
                encoding="utf-8"
            )
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            heading = next((line for line in text.splitlines() if line.startswith("# ")), path)
            lines.append(f"- [{heading.removeprefix('# ')}]({path})")
    site.joinpath("cards.json").write_text(json.dumps({"results": results()}), encoding="utf-8")
    site.joinpath("llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def sections(nav: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """The parts of the navigation, with the paths of all pages below each."""
    for entry in nav:
        for title, below in entry.items():
            yield title, list(paths(below))


def paths(entry: Any) -> Iterator[str]:
    """The pages of an entry of the navigation, in its order."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from paths(each)


def boost(page: Page) -> float:
    """How much the words of a page count in the search, besides where they stand in it."""
    is_guide = any(section.title in GUIDES for section in page.ancestors)
    own = next(
        (number for start, number in BOOSTS.items() if page.file.src_uri.startswith(start)), 1.0
    )
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
    return "\n\n".join(
        ["---\nsearch:\n  exclude: true\n---", f"# {path.relative_to(ROOT)}", *blocks]
    )
