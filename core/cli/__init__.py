"""The command `core`, and what a package needs for commands of its own. Nothing here imports torch,
or a plugin.

A command prints through `say` or `say_json`, which make text printable that comes from elsewhere.
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from core.cli.cards import files_digest, own_card, package_folder
    from core.cli.commands import main
    from core.cli.kinds import KINDS_BY_OPTION, unknown_alias
    from core.cli.layout import (
        Shown,
        paragraph,
        say,
        say_json,
        shown,
        size_text,
        styled,
        table,
        with_article,
    )

__all__ = [
    "KINDS_BY_OPTION",
    "Shown",
    "files_digest",
    "main",
    "own_card",
    "package_folder",
    "paragraph",
    "say",
    "say_json",
    "shown",
    "size_text",
    "styled",
    "table",
    "unknown_alias",
    "with_article",
]

__getattr__, __dir__ = lazy_exports(__name__)
