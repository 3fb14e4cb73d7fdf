"""Proofs in the terminal, and as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from core.cli import say, styled

if TYPE_CHECKING:
    from core.contract import Remark
    from core_plan.prover import ProgramProof

_COLORS = {"right": "green", "ran": "green", "wrong": "red", "not proven": "yellow"}


def print_proof(proof: ProgramProof) -> None:
    """Print the answer and what it rests on, then a line each for what was found, as compilers
    print theirs.
    """
    rests = "" if proof.findings else f": {basis(proof)}"
    answer = styled(proof.answer, fg=_COLORS[proof.answer])
    say(styled(proof.strategy, bold=True), "  ", answer, rests)
    for one in proof.findings:
        say("    ", line(one))


def basis(proof: ProgramProof) -> str:
    """The work that an answer rests on, in a sentence."""
    ranks = ", ".join(map(str, proof.ranks))
    ran = f"ranks {ranks} exchange the same" if len(proof.ranks) > 1 else f"rank {ranks} has run"
    if proof.is_real:
        ran = f"ran for real on the CPU with {len(proof.ranks)} ranks"
    if not proof.axes:
        return f"{ran}; what each computes isn't followed"
    return f"followed along {', '.join(proof.axes)}; {ran}"


def line(found: Remark) -> str:
    """One finding: where, along which axis, what."""
    text = " ".join(found.text.split())
    parts = [found.place, found.axis, "" if found.is_wrong else "not proven", text]
    return ": ".join(filter(None, parts))


def row(proof: ProgramProof) -> dict[str, Any]:
    """A proof with all that it has."""
    return {**dataclasses.asdict(proof), "answer": proof.answer}
