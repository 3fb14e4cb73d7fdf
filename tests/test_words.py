"""The words of prose and identifiers: those of the field, so that a reader of PyTorch needs no glossary."""

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("core/**", "plugins/*/core_*/**", "benchmarks", "docs/site", "examples", ".")
FILES = sorted(path for place in PLACES for path in ROOT.glob(f"{place}/*.py"))

OPENING = re.compile(r"(?:(?:All ranks|Rank 0)[^.]*\. )?(Tell|Say|Let|Take|Put|Come|Have|Be|What|Who|Nobody)s?\b(?!-)")
"""First words of a docstring that ask or command, and describe nothing."""
BANNED = {
    r"\b(told|tells|heard)\b(?! apart)": "say what is passed, returned, logged or raised",
    r"\ban? [\w`.-]+ of (the )?\w+'s(?! \w| own)": "a store of torch's -> a torch store",
    r"\ban? [\w`.-]+ of (the )?\w+'s (own )?(that|which|may|isn't)\b": "a store of torch's that -> a torch store that",
    r"\beverything that floats\b": "all floating-point tensors",
    r"\b(errand|echo of|gives? up about)\b": "background call, lost connection, aborts",
}

BANNED_NAMES = re.compile(
    r"(^|_)(told|tell|tells|wish|wishes|settle|settled|lend|lends|doomed|bystanders?|anew|whereabouts)(_|$)"
)
"""Parts of identifiers: write what is reported, requested, agreed, rebalanced, removed or restarted."""


def docstrings(path):
    """The strings that stand by themselves, of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, " ".join(node.value.value.split())


def comments(path):
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def defined_names(path):
    """All that a file gives a name, with its lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_say_what_a_thing_is_or_does(path):
    for line, text in docstrings(path):
        found = OPENING.match(text)
        assert not found, (
            f"{path}:{line}: a docstring begins with {found[0]!r}. Begin with what the thing is, or what it does: "
            "'True if ...', 'Restore ...', 'Set ...', 'Return ...', 'The ...'"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_uses_words_of_the_field(path):
    for line, text in [*docstrings(path), *comments(path)]:
        for pattern, cure in BANNED.items():
            found = re.search(pattern, text)
            assert not found, f"{path}:{line}: {found[0]!r}. Write it in the field's words: {cure}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_identifiers_use_words_of_the_field(path):
    for line, name in defined_names(path):
        found = BANNED_NAMES.search(name.lower())
        assert not found, f"{path}:{line}: {name}. Name it in the field's words, not {found[2]!r}"
