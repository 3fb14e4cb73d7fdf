"""`core checkpoint`: look at checkpoints, verify and convert them."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from core.cli.layout import say, say_json, size_text, styled, table
from core.cli.working import working

if TYPE_CHECKING:
    from core.checkpoint.summary import Summary, TensorRow

_EXAMPLES = """\b
Examples:
  core checkpoint inspect last.ckpt
  core checkpoint inspect last.ckpt --tensors
  core checkpoint verify checkpoints/*.ckpt
  core checkpoint convert last.ckpt model.safetensors
  core checkpoint consolidate last.ckpt last.pt
"""


@click.group(short_help="Look at checkpoints, verify and convert them.", epilog=_EXAMPLES)
def checkpoint() -> None:
    """Look at checkpoints, verify and convert them. PATH is a folder or a file, local or a URL.

    Checkpoints of PyTorch Lightning can be read too. Nothing that is read is executed.
    """


@checkpoint.command(short_help="Tell what is in a checkpoint, and who wrote it.")
@click.argument("path")
@click.option("--tensors", is_flag=True, help="List each tensor, with its shape.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def inspect(path: str, tensors: bool, as_json: bool) -> None:
    """Tell what is in a checkpoint: sections, sizes, dtypes, and the strategy and world size that wrote it."""
    from core.checkpoint.summary import summarize

    summary = summarize(path)
    if as_json:
        say_json(_as_json(path, summary))
        return
    for line in [*table(["What", "Value"], _facts(summary)), "", *table(*_sections(summary))]:
        say(line)
    if tensors:
        rows = [[row.name, row.dtype, size_text(row.size_bytes), _shape(row)] for row in summary.tensors]
        for line in ["", *table(["Tensor", "Dtype", "Size", "Shape"], rows)]:
            say(line)


@checkpoint.command(short_help="Compare every byte with its digest.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.pass_context
def verify(ctx: click.Context, paths: tuple[str, ...]) -> None:
    """Read every byte of checkpoints and compare it with its digest. The exit code is 1 if one is damaged."""
    from core.checkpoint import verify_checkpoint
    from core.contract.errors import CheckpointError

    failed = False
    for path in paths:
        try:
            with working(f"Verifying {path}") as report:
                verify_checkpoint(path, report)
        except CheckpointError as error:
            failed = True
            say(styled("damaged", fg="red"), f"  {path}")
            say(f"    {error}")
        else:
            say(styled("whole", fg="green"), f"    {path}")
    ctx.exit(int(failed))


@checkpoint.command(short_help="Write a checkpoint in another form.")
@click.argument("source")
@click.argument("target")
@click.option("--to", metavar="ALIAS", help="CheckpointIO that makes TARGET.  [default: what the target's name says]")
@click.option("--from", "reader", metavar="ALIAS", help="CheckpointIO of a plugin that reads SOURCE.")
def convert(source: str, target: str, to: str | None, reader: str | None) -> None:
    """Write the checkpoint at SOURCE to TARGET in another form.

    A TARGET that ends with .safetensors gets the weights alone, one with .pt or .pth is a file, and any other a folder:
    --to safetensors, torch and distributed. `core list-checkpoint-ios` lists all forms, those of plugins too.
    """
    _convert(source, target, to or _form_of(target), reader)


@checkpoint.command(short_help="Write a checkpoint to one file.")
@click.argument("source")
@click.argument("target")
def consolidate(source: str, target: str) -> None:
    """Write the whole state at SOURCE to one file, TARGET, which `torch.load(..., weights_only=True)` reads."""
    _convert(source, target, "torch")


def _convert(source: str, target: str, form: str, reader: str | None = None) -> None:
    from core.checkpoint.conversion import convert_checkpoint
    from core.registry import CHECKPOINT_IO_REGISTRY

    create = CHECKPOINT_IO_REGISTRY.create
    with working(f"Writing {target}"):
        convert_checkpoint(source, target, create(form), reader=create(reader) if reader else None)
    say(f"{target}: {form}")


def _form_of(target: str) -> str:
    if target.endswith(".safetensors"):
        return "safetensors"
    return "torch" if target.endswith((".pt", ".pth")) else "distributed"


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
        dtypes = ", ".join(f"{dtype} ({number:,})" for dtype, number in summary.dtypes(name).items())
        rows.append([name, str(len(tensors)), size_text(sum(row.size_bytes for row in tensors)), dtypes or "-"])
    return ["Section", "Tensors", "Size", "Elements by dtype"], rows


def _provided(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    return f"{part.get('alias')} ({part.get('provider')} {part.get('version')})"


def _shape(row: TensorRow) -> str:
    return " x ".join(map(str, row.shape)) or "scalar"


def _as_json(path: str, summary: Summary) -> dict[str, Any]:
    found = summary.manifest
    return {
        "path": path,
        "form": summary.form,
        "world_size": found and found.world_size,
        "writer": found and found.writer,
        "versions": found and found.versions,
        "saved_at_ns": found and found.saved_at_ns,
        "sections": list(summary.sections),
        "tensors": [
            {"name": row.name, "shape": row.shape, "dtype": row.dtype, "size_bytes": row.size_bytes}
            for row in summary.tensors
        ],
    }
