"""`core checkpoint`: list checkpoints, look at them, verify and convert them, and clean up."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from core.cli.layout import say, say_all, say_json, size_text, styled, table, working
from core.contract.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.checkpoint.upkeep.listing import Listed
    from core.checkpoint.upkeep.stale import Removable
    from core.checkpoint.upkeep.summary import Summary

_EXAMPLES = """\b
Examples:
  core checkpoint ls checkpoints
  core checkpoint ls core_logs               of all runs in it
  core checkpoint inspect last.ckpt
  core checkpoint inspect last.ckpt --tensors
  core checkpoint verify checkpoints/*.ckpt
  core checkpoint convert last.ckpt model.safetensors
  core checkpoint consolidate last.ckpt last.pt
  core checkpoint gc checkpoints --keep 3
"""


@click.group(short_help="List, verify, convert and clean up checkpoints.", epilog=_EXAMPLES)
def checkpoint() -> None:
    """List checkpoints, look at them, verify and convert them, and clean up. A PATH is a folder, a
    file or a URL.

    With core-lightning, checkpoints of PyTorch Lightning can be read too. Nothing that is read is
    executed.
    """


@checkpoint.command("ls", short_help="List the checkpoints in a folder, with step, age and size.")
@click.argument("folders", nargs=-1, metavar="[FOLDER]...")
@click.option("--verify", is_flag=True, help="Compare every byte with its digest, too.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_(folders: tuple[str, ...], verify: bool, as_json: bool) -> None:
    """List the checkpoints in FOLDERs, by default the current one, the newest first. Of a folder
    without any, list those of all runs below it.

    One is "complete" if all of its files are there with their sizes, and with --verify "verified"
    if every byte has its digest; "damaged" says why. The age is that of the save, whatever has been
    copied since.
    """
    found = [listed for folder in folders or (".",) for listed in _listed(folder, verify)]
    if as_json:
        say_json([dataclasses.asdict(listed) for listed in found])
        return
    if not found:
        say("No checkpoints are there.")
        return
    rows = [
        [
            listed.path,
            "-" if listed.step is None else f"{listed.step:,}",
            _age(listed.saved_at_s),
            size_text(listed.size_bytes),
            listed.state,
        ]
        for listed in found
    ]
    say_all(
        table(
            ["Checkpoint", "Step", "Age", "Size", "State"],
            rows,
            [listed.detail for listed in found],
        )
    )


@checkpoint.command(short_help="Delete what killed runs have left, and old checkpoints.")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Of the checkpoints, keep the so many newest that verify.",
)
@click.option("--delete", is_flag=True, help="Delete. Without it, only say what would go.")
@click.option(
    "--stopped", is_flag=True, help="Nothing saves there now: ask neither locks nor ages."
)
@click.pass_context
def gc(
    ctx: click.Context, folders: tuple[str, ...], keep: int | None, delete: bool, stopped: bool
) -> None:
    """List what killed runs have left in FOLDERs of checkpoints; delete it with --delete.

    What a live run needs stays. On a local file system locks show that; on an object store, what
    hasn't changed for a day counts as left over. With --keep, older and damaged checkpoints go: as
    many as are to stay are read and verified first, and what a link leads to stays. Where none
    verifies, no checkpoint goes.
    """
    total, failed = 0, False
    for folder in folders:
        with _explained(folder):
            for found in _removable(folder, keep, stopped):
                total += found.size_bytes
                say(
                    "delete" if delete else "would delete",
                    f"  {found.path}  {size_text(found.size_bytes)}",
                )
                say(f"    {found.why}")
                try:
                    if delete:
                        found.delete()
                except (OSError, CheckpointError) as error:
                    failed = True
                    say(styled("failed", fg="red"), f"  {error}")
    if failed:
        say("Not all of it could be deleted.")
    elif delete:
        say(f"{size_text(total)} deleted.")
    elif total:
        say(f"{size_text(total)} would go. --delete deletes it.")
    else:
        say("Nothing is left over.")
    ctx.exit(int(failed))


def _removable(folder: str, keep: int | None, stopped: bool) -> Iterator[Removable]:
    """The files that are to go, one by one: while a left-over is handed out, its folder is
    locked.
    """
    from core.checkpoint.upkeep.finding import collectable
    from core.checkpoint.upkeep.stale import stale_files

    yield from stale_files(folder, stopped=stopped)
    if keep:
        with working(f"Verifying what stays in {folder}"):
            checkpoints = collectable(folder, keep)
        yield from checkpoints


@contextlib.contextmanager
def _explained(folder: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise click.ClickException(
            f"There is no folder {folder!r}. Expected a folder of checkpoints."
        ) from None


def _listed(folder: str, verify: bool) -> list[Listed]:
    from core.checkpoint.upkeep.listing import list_checkpoints

    with (
        _explained(folder),
        working(f"Verifying {folder}" if verify else f"Looking through {folder}") as report,
    ):
        found = list_checkpoints(folder, verify=verify, progress=report)
        if not found:
            for within in sorted(Path(folder).glob("**/checkpoints/")):
                found += list_checkpoints(str(within), verify=verify, progress=report)
        return found


def _age(saved_at_s: float) -> str:
    if not saved_at_s:
        return "?"
    age_s = time.time() - saved_at_s
    if age_s < -60:
        return "ahead of this clock"
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return f"{max(age_s, 0):.0f} s"


@checkpoint.command(short_help="Show what is in a checkpoint, and who wrote it.")
@click.argument("path")
@click.option("--tensors", is_flag=True, help="List each tensor, with its shape.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def inspect(path: str, tensors: bool, as_json: bool) -> None:
    """Show what is in a checkpoint: sections, sizes, dtypes, and the strategy and world size that
    wrote it.
    """
    from core.checkpoint.upkeep.summary import summarize

    summary = summarize(path)
    if as_json:
        tensors_in_it = [
            {"name": row.name, "shape": row.shape, "dtype": row.dtype, "size_bytes": row.size_bytes}
            for row in summary.tensors
        ]
        facts = ("world_size", "writer", "versions", "saved_at_ns")
        say_json(
            {
                "path": path,
                "form": summary.form,
                **{name: getattr(summary.manifest, name, None) for name in facts},
                "sections": list(summary.sections),
                "tensors": tensors_in_it,
            }
        )
        return
    say_all([*table(["What", "Value"], _facts(summary)), "", *table(*_sections(summary))])
    if tensors:
        rows = [
            [
                row.name,
                row.dtype,
                size_text(row.size_bytes),
                " x ".join(map(str, row.shape)) or "scalar",
            ]
            for row in summary.tensors
        ]
        say_all(["", *table(["Tensor", "Dtype", "Size", "Shape"], rows)])


@checkpoint.command(short_help="Compare every byte with its digest.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.pass_context
def verify(ctx: click.Context, paths: tuple[str, ...]) -> None:
    """Read every byte of checkpoints and compare it with its digest. The exit code is 1 if one
    isn't whole.
    """
    from core.checkpoint import verify_checkpoint

    failed = False
    for path in paths:
        try:
            with working(f"Verifying {path}") as report:
                verify_checkpoint(path, report)
        except CheckpointError as error:
            failed = True
            say(styled("failed", fg="red"), f"   {path}")
            say(f"    {error}")
        else:
            say(styled("whole", fg="green"), f"    {path}")
    ctx.exit(int(failed))


@checkpoint.command(short_help="Write a checkpoint in another form.")
@click.argument("source")
@click.argument("target")
@click.option(
    "--to", "--as", metavar="ALIAS", help="CheckpointIO that makes TARGET.  [default: by its name]"
)
@click.option(
    "--from", "reader", metavar="ALIAS", help="CheckpointIO of a plugin that reads SOURCE."
)
def convert(source: str, target: str, to: str | None, reader: str | None) -> None:
    """Write the checkpoint at SOURCE to TARGET in another form.

    A TARGET that ends with .safetensors gets the weights alone, one with .pt or .pth is a file, and
    any other a folder: --to safetensors, torch and distributed. `core list checkpoint-ios` lists
    all forms, those of plugins too.
    """
    forms = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch"}
    by_name = forms.get(os.path.splitext(target)[1], "distributed")
    _convert(source, target, to or by_name, reader)


@checkpoint.command(short_help="Write a checkpoint to one file.")
@click.argument("source")
@click.argument("target")
def consolidate(source: str, target: str) -> None:
    """Write the whole state at SOURCE to one file, TARGET, which
    `torch.load(..., weights_only=True)` reads.
    """
    _convert(source, target, "torch")


def _convert(source: str, target: str, form: str, reader: str | None = None) -> None:
    from core.checkpoint.upkeep.conversion import convert_checkpoint
    from core.registry import CHECKPOINT_IO_REGISTRY

    create = CHECKPOINT_IO_REGISTRY.create
    reads = None
    if reader is not None:
        reads = create(reader)
    with working(f"Writing {target}"):
        convert_checkpoint(source, target, create(form), reader=reads)
    say(f"{target}: {form}")


def _facts(summary: Summary) -> list[list[str]]:
    total = sum(row.size_bytes for row in summary.tensors)
    facts = [["form", summary.form], ["tensors", f"{len(summary.tensors)}, {size_text(total)}"]]
    found = summary.manifest
    if found is None:
        return facts
    saved = datetime.datetime.fromtimestamp(found.saved_at_ns / 1e9).astimezone()
    return [
        *facts,
        ["files", str(len(found.files) + 1)],
        ["saved", f"{saved:%Y-%m-%d %H:%M:%S %z}"],
        ["world size", str(found.world_size)],
        *([kind, _provided(part)] for kind, part in found.writer.items()),
        *([name, str(version)] for name, version in found.versions.items()),
    ]


def _sections(summary: Summary) -> tuple[list[str], list[list[str]]]:
    rows = []
    for name in summary.sections:
        tensors = [row for row in summary.tensors if row.section == name]
        dtypes = ", ".join(
            f"{dtype} ({number:,})" for dtype, number in summary.dtypes(name).items()
        )
        rows.append(
            [
                name,
                str(len(tensors)),
                size_text(sum(row.size_bytes for row in tensors)),
                dtypes or "-",
            ]
        )
    return ["Section", "Tensors", "Size", "Elements by dtype"], rows


def _provided(part: object) -> str:
    if not isinstance(part, dict):
        return str(part)
    return f"{part.get('alias')} ({part.get('provider')} {part.get('version')})"
