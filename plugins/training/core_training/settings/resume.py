"""The parts of a checkpoint with which a fit goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from core.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from core.contract import PathLike

PARTS = ("weights", "optimizers", "schedulers", "data", "step", "callbacks")
_SECTIONS = {
    "model": "weights",
    "module_section": "weights",
    "optimizers": "optimizers",
    "precision": "optimizers",
    "lr_schedulers": "schedulers",
    "schedulers": "schedulers",
    "loaders": "data",
    "datamodule": "data",
    "ranks": "data",
    "progress": "step",
    "callbacks": "callbacks",
}
"""The part to which each section of a checkpoint belongs."""


@dataclass(frozen=True)
class Resume:
    """The parts of a checkpoint with which `fit` goes on; the others begin anew.

        trainer.fit(module, ckpt_path=path, resume="weights")
        trainer.fit(module, ckpt_path=path, resume=Resume("weights", renamed={"encoder":
        "backbone"}, strict=False))

    Attributes:
        parts: `"all"`, or one or several of `"weights"`, `"optimizers"`, `"schedulers"`, `"data"`
            (the position in the training data, and random states), `"step"` (the counters of steps
            and epochs) and `"callbacks"`.
        strict: the module and the optimizers have the parameters that they were saved with. False:
            those that were added begin anew, those that are gone are left out, and a line or a
            warning names them.
        renamed: names of today by the saved ones; each of a tensor, or of a module and all that is
            in it.
        settings: where the program says another learning rate, weight decay or argument of a
            scheduler than the checkpoint, which of them counts: `"checkpoint"` or `"program"`. A
            table shows such differences. A rate that a schedule has halved is half of the
            program's.
    """

    parts: str | Collection[str] = "all"
    strict: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)
    settings: Literal["checkpoint", "program"] = "checkpoint"

    def __post_init__(self) -> None:
        given = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        if given == ("all",):
            given = PARTS
        unknown = [part for part in given if part not in PARTS]
        if unknown or not given:
            wrong = f", not {unknown[0]!r}" if unknown else ""
            raise ConfigurationError(
                f"resume={self.parts!r}: expected 'all', or some of {', '.join(map(repr, PARTS))}"
                f"{wrong}."
            )
        if self.settings not in ("checkpoint", "program"):
            raise ConfigurationError(
                f"settings={self.settings!r}: expected 'checkpoint' or 'program'."
            )
        if "data" in given and "step" not in given:
            raise ConfigurationError(
                f"resume={self.parts!r}: a position in the data belongs to the epoch that 'step' "
                "counts. Add 'step'."
            )
        object.__setattr__(self, "parts", frozenset(given))

    @classmethod
    def of(cls, given: str | Collection[str] | Resume, ckpt_path: PathLike | None) -> Resume:
        """The argument `resume` of `Trainer.fit`, beside its `ckpt_path`.

        Raises:
            ConfigurationError: no such parts; or parts of no checkpoint, or of the run's own.
        """
        made = given
        if not isinstance(made, Resume):
            made = cls(made)
        if made.is_whole or ckpt_path not in (None, "last"):
            return made
        if ckpt_path is None:
            raise ConfigurationError(
                f"resume={given!r} says what to take from a checkpoint. Pass its ckpt_path=..."
            )
        raise ConfigurationError(
            f"resume={given!r} with ckpt_path='last': a run that is started again would begin at "
            "that part each time. Go on with all of its own checkpoint, or pass the path of "
            "another one."
        )

    @property
    def is_whole(self) -> bool:
        """True if the run goes on exactly."""
        return self == Resume()

    def takes(self, part: str) -> bool:
        """True if the run goes on with this part."""
        return part in self.parts

    def choose(self, sections: Mapping[str, Any]) -> dict[str, Any]:
        """The sections of a checkpoint that belong to these parts, and those that belong to
        none.
        """
        return {
            name: each
            for name, each in sections.items()
            if _SECTIONS.get(name) in (None, *self.parts)
        }

    def describe(self) -> str:
        """The parts that begin anew; empty if none does."""
        others = [part for part in PARTS if part not in self.parts]
        if not others:
            return ""
        return f"; anew: {', '.join(others)}"
