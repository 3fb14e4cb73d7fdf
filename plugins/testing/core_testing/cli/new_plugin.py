"""`core new-plugin NAME`: a distribution that passes the conformance kit as it is written."""

from __future__ import annotations

import keyword
import re
import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import click
from packaging.version import Version

from core import KINDS, ConfigurationError, __version__, near_names
from core.cli import say
from core.registry import (
    BY_NAME_ONLY,
    CORE,
    CORE_DISTRIBUTIONS,
    Registry,
    is_reserved,
    known_aliases,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

__all__ = ["new_plugin"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PREFIX = "core-"
_SUFFIX = ".tmpl"


@dataclass(frozen=True, slots=True)
class _PluginForm:
    """The values that fill the templates of a kind, beside names.

    Attributes:
        kind: a key of `core.contract.KINDS`.
        module: of the package, that holds the class.
        suffix: of the class's name.
        description: one sentence.
        usage: of an alias, as a user writes it.
        requirements: of the code, beside core.
    """

    kind: str
    module: str
    suffix: str
    description: str
    usage: str
    requirements: tuple[str, ...] = ("torch>=2.9",)


_FORMS = {
    "strategy": _PluginForm(
        "strategy",
        "strategy",
        "Strategy",
        "A strategy for core: gradients are averaged over processes.",
        'Trainer(strategy="$alias", accelerator="cpu", devices=2)',
    ),
    "accelerator": _PluginForm(
        "accelerator",
        "accelerator",
        "Accelerator",
        "An accelerator for core: one kind of device.",
        'Trainer(accelerator="$alias", devices=1)',
    ),
    "precision": _PluginForm(
        "precision",
        "precision",
        "Precision",
        "A precision for core: the number formats that a run computes in.",
        'Trainer(precision="$alias")',
    ),
    "checkpoint-io": _PluginForm(
        "checkpoint io",
        "checkpoint_io",
        "CheckpointIO",
        "A CheckpointIO for core: how checkpoints are stored.",
        'Trainer(plugins=["$alias"])',
        ("fsspec>=2024.2.0", "torch>=2.9"),
    ),
    "checkpoint-reader": _PluginForm(
        "checkpoint reader",
        "reader",
        "Reader",
        "A checkpoint reader for core: runs go on from the files of another program.",
        'Trainer().fit(module, ckpt_path="theirs.ckpt")',
    ),
    "cluster-environment": _PluginForm(
        "cluster environment",
        "environment",
        "Environment",
        "A cluster environment for core: who started the processes.",
        "Trainer(devices=2)  # finds it by itself in a job of the scheduler",
        (),
    ),
    "logger": _PluginForm(
        "logger",
        "logger",
        "Logger",
        "A logger for core: where metrics go.",
        'Trainer(logger="$alias")',
        (),
    ),
}


class _KindChoice(click.Choice[str]):
    """One of the kinds, with an idea of what a misspelt one was meant to be."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, and name what is near."""
        try:
            return super().convert(str(value).replace("_", "-").replace(" ", "-"), param, ctx)
        except click.BadParameter as error:
            near = near_names(str(value), self.choices, count=1, cutoff=0.5)
            advice = f" Did you mean {near[0]}?" if near else ""
            raise click.BadParameter(f"{error.message}{advice}", ctx, param) from error


_EXAMPLES = """\b
Examples:
  core new-plugin acme                    a strategy of your own, in core-acme/
  core new-plugin acme --wraps            a strategy around a library's wrapper
  core new-plugin parquet --kind logger

The package's constraints.txt says where core is until an index has it: copy
there what `python plugins/wheels.py dist` in a checkout of core has written.
"""


@click.command(short_help="Write a package for a backend of your own.", epilog=_EXAMPLES)
@click.argument("name")
@click.option("--kind", type=_KindChoice(list(_FORMS)), default="strategy", show_default=True)
@click.option(
    "--wraps", is_flag=True, help="A strategy around a library's own wrapper, such as torch's DDP."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="What to write; must not exist, or be empty.  [default: core-NAME]",
)
def new_plugin(name: str, kind: str, wraps: bool, directory: Path | None) -> None:
    """Write a package that offers NAME to core: code that works, its conformance test, tox.ini and
    CI.

    It passes `core check NAME` as it stands. Change it bit by bit, and see that it still does.
    """
    if wraps and kind != "strategy":
        raise click.UsageError(f"--wraps is for strategies: leave it out for a {kind}.")
    form = _FORMS[kind]
    alias = _checked(name, form.kind)
    values = _values(alias, kind, form)
    target = directory or Path(values["distribution"])
    template = "strategy-wrapper" if wraps else kind
    written = _write(_files(template, values), target)
    say(f"{target}: {len(written)} files")
    for path in written:
        say(f"  {path}")
    say("")
    say(
        "Next, where ../core is a checkout of core in which `python plugins/wheels.py dist` has "
        "run:"
    )
    for step in (
        f"cd {shlex.quote(str(target))}",
        "cp ../core/dist/constraints.txt .",
        "python -m pip install -c constraints.txt -e '.[dev]'",
        f"core check {alias}{values['kind_option']}",
    ):
        say(f"  {step}")


def _checked(name: str, kind: str) -> str:
    """The alias, without the prefix that distributions have.

    Raises:
        ConfigurationError: it can't be the name of a package, or belongs to another package.
    """
    folded = name.strip().lower().replace("_", "-").removeprefix(_PREFIX)
    if not _NAME.fullmatch(folded) or keyword.iskeyword(folded):
        near = re.sub(r"[^a-z0-9]+", "-", folded).strip("-0123456789") or "acme"
        advice = (
            f" How about {near}?" if _NAME.fullmatch(near) and not keyword.iskeyword(near) else ""
        )
        raise ConfigurationError(
            f"{name!r} can't be a name: expected letters, digits and dashes, as in acme.{advice}"
        )
    alias, distribution = folded.replace("-", "_"), f"{_PREFIX}{folded}"
    owner = CORE if is_reserved(kind, alias) else known_aliases(kind).get(alias)
    owners = [offer.spec.provider for offer in Registry[Any](kind).providers_of(alias)]
    if owner:
        owners = [owner, *owners]
    if taken := [each for each in owners if each != distribution or owner]:
        raise ConfigurationError(
            f"{alias!r} is a {kind} of {taken[0]} already, and two of one name are an error where "
            f"they are used. Choose another name, such as my-{folded}."
        )
    if distribution in {
        *CORE_DISTRIBUTIONS,
        *(each for one in (*KINDS, *BY_NAME_ONLY) for each in known_aliases(one).values()),
    }:
        raise ConfigurationError(
            f"{distribution} is a package of core's own, and only one of that name can be "
            f"installed. Choose another name, such as my-{folded}."
        )
    return alias


def _values(alias: str, kind: str, form: _PluginForm) -> dict[str, str]:
    """The values of `$$name` in the templates."""
    major, minor = Version(__version__).release[:2]
    bounds = f">={major}.{minor},<{major}.{minor + 1}"
    words = alias.split("_")
    camel = "".join(word.capitalize() for word in words)
    return {
        "alias": alias,
        "name": camel,
        "class_name": f"{camel.removesuffix(form.suffix)}{form.suffix}",
        "constant": alias.upper(),
        "distribution": f"{_PREFIX}{'-'.join(words)}",
        "package": f"core_{alias}",
        "module": form.module,
        "group": KINDS[form.kind].group,
        "list_command": f"list {KINDS[form.kind].plural}",
        "kind_option": "" if kind == "strategy" else f" --kind {kind}",
        "description": form.description,
        "usage": Template(form.usage).substitute(alias=alias),
        "bounds": bounds,
        "requirements": ", ".join(f'"{each}"' for each in (f"{CORE}{bounds}", *form.requirements)),
    }


def _files(template: str, values: dict[str, str]) -> dict[str, str]:
    """Content by path, of what all kinds have in common and of what one adds."""
    root = resources.files("core_testing.cli") / "templates"
    found = {path: file for name in ("common", template) for path, file in _walk(root / name)}
    return {
        _named(path, values): Template(file.read_text(encoding="utf-8")).substitute(values)
        for path, file in sorted(found.items())
    }


def _walk(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{above}{entry.name}", entry


def _named(path: str, values: dict[str, str]) -> str:
    parts = path.removesuffix(_SUFFIX).split("/")
    renamed = [
        values["package"] if part == "package" else part.replace("dot_", ".", 1) for part in parts
    ]
    return "/".join(renamed)


def _write(files: dict[str, str], target: Path) -> list[str]:
    """All of them, into a folder that is new or empty.

    Raises:
        ConfigurationError: something is there, or it can't be written.
    """
    if target.exists() and any(target.iterdir()):
        raise ConfigurationError(
            f"{target} is not empty, and nothing is overwritten. Pass --directory, or remove it."
        )
    try:
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{target} can't be written: {error}") from error
    return list(files)
