"""The token of this user's runs, by which nodes and files are known. It is never sent."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from core.contract import LaunchError

VARIABLE = "CORE_GO_ON_TOKEN"
"""The variable that may have the token, where nodes don't share the user's home."""


def own_token() -> str:
    """This user's token: what the variable has, or a file in the user's home, which is made once.

    Raises:
        LaunchError: the file can't be made or read, or isn't this user's alone.
    """
    if given := os.environ.get(VARIABLE):
        return given
    try:
        path = Path(
            os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share", "core", "go-on-token"
        )
        if not path.exists():
            _make(path)
        with path.open() as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(f"{path} isn't this user's alone; delete it")
            return file.read()
    except (OSError, RuntimeError) as error:
        raise LaunchError(
            f"core go-on has no token by which it knows this user's nodes and files: {error}. "
            f"Set {VARIABLE} to a secret of yours, the same on all nodes."
        ) from error


def prove(token: str, who: str, text: object) -> str:
    """The proof of having the token, for a text of the other's choice.

    Args:
        token: of both.
        who: proves it, so that no proof is of use to another.
        text: what is proven for.
    """
    return hmac.new(token.encode(), f"{who} {text!a}".encode(), "sha256").hexdigest()


def is_proof(found: object, token: str, who: str, text: object) -> bool:
    """True if this is what `prove` gives, whatever has been sent."""
    return hmac.compare_digest(ascii(found), ascii(prove(token, who, text)))


def _make(path: Path) -> None:
    """Make a token at once and whole, since several nodes may."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:
        file.write(secrets.token_hex())
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)
