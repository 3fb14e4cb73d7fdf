"""The words of prose and identifiers: those of the field, so that a reader of PyTorch needs no
glossary.
"""

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("core/**", "plugins/*/core_*/**", "benchmarks", "docs/site", "examples", ".")
FILES = sorted(path for place in PLACES for path in ROOT.glob(f"{place}/*.py"))


def named_by(node):
    """What a node of the syntax tree gives a name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return None


@pytest.fixture(scope="module")
def texts():
    """Docstrings, comments and identifiers of all files, each with its place.

    Docstrings are the strings that stand by themselves, of modules, classes, functions and
    attributes.
    """
    docstrings, comments, names = [], [], []
    for path in FILES:
        place = path.relative_to(ROOT)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                docstrings.append((f"{place}:{node.lineno}", " ".join(node.value.value.split())))
            elif name := named_by(node):
                names.append((f"{place}:{node.lineno}", name))
        with tokenize.open(path) as file:
            tokens = [
                token
                for token in tokenize.generate_tokens(file.readline)
                if token.type == tokenize.COMMENT
            ]
        comments += [(f"{place}:{token.start[0]}", token.string) for token in tokens]
    assert len(docstrings) > 1000 < len(names)
    return docstrings, comments, names


def test_docstrings_say_what_a_thing_is_or_does(texts):
    docstrings, _, _ = texts
    # First words of a docstring that ask or command, and describe nothing.
    opening = re.compile(
        r"(?:(?:All ranks|Rank 0)[^.]*\. "
        r")?(Tell|Say|Let|Take|Put|Come|Have|Be|What|Who|Nobody)s?\b(?!-)"
    )
    found = [
        f"{place}: a docstring begins with {match[0]!r}"
        for place, text in docstrings
        if (match := opening.match(text))
    ]
    cure = (
        "Begin with what the thing is or does: 'True if ...', 'Restore ...', 'Set ...', 'Return "
        "...', 'The ...'"
    )
    assert found == [], cure


def test_prose_uses_words_of_the_field(texts):
    docstrings, comments, _ = texts
    banned = {
        r"\b(told|tells|heard)\b(?! apart)": "say what is passed, returned, logged or raised",
        r"\ban? [\w`.-]+ of (the )?\w+'s(?! \w| own)": "a store of torch's -> a torch store",
        r"\ban? [\w`.-]+ of (the )?\w+'s (own "
        r")?(that|which|may|isn't)\b": "a store of torch's that -> a torch store that",
        r"\beverything that floats\b": "all floating-point tensors",
        r"\b(errand|echo of|gives? up about)\b": "background call, lost connection, aborts",
    }
    found = [
        f"{place}: {match[0]!r}. Write it in the field's words: {cure}"
        for place, text in [*docstrings, *comments]
        for pattern, cure in banned.items()
        if (match := re.search(pattern, text))
    ]
    assert found == []


def test_identifiers_use_words_of_the_field(texts):
    _, _, names = texts
    # Parts of identifiers: write what is reported, requested, agreed, rebalanced, removed or
    # restarted.
    banned_names = re.compile(
        r"(^|_)(told|tell|tells|wish|wishes|settle|settled|lend|lends|doomed|bystanders?|anew|whereabouts)(_|$)"
    )
    found = [
        f"{place}: {name}, with {match[2]!r}"
        for place, name in names
        if (match := banned_names.search(name.lower()))
    ]
    assert found == [], "Name it in the field's words"
