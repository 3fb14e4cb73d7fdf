"""Plans: which modules of a model are cut how, from the strategy's argument, the model, or its
config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core import ConfigurationError, ModuleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

Plan = Mapping[str, Any]


def find(
    module: nn.Module,
    given: Plan | None,
    attribute: str,
    of_config: str,
    option: str,
    *,
    example: str,
) -> dict[str, Any]:
    """The plan for modules and parameters, by their names in the user's module.

    Args:
        module: the user's.
        given: by names in it; `*` stands for one part of a name.
        attribute: a mapping of the module or of one in it, or a method that returns one; names are
            those in its owner.
        of_config: name of the plan of a config, such as transformers' `base_model_tp_plan`; the
            config is an attribute `config` of a module.
        option: of the strategy, for messages.
        example: of a plan, for messages.

    Raises:
        ModuleError: there is no plan.
        ConfigurationError: a pattern fits nothing.
    """
    if given is not None:
        return _matched("", module, given, option)
    planned: dict[str, Any] = {}
    is_declared = False
    for name, part in module.named_modules():
        plan: Any = getattr(part, attribute, None)
        if plan is not None:
            is_declared = True
            if callable(plan):
                plan = plan()
            planned |= _matched(name, part, plan, attribute)
    if is_declared:
        return planned
    planned = _of_configs(module, of_config)
    if not planned:
        raise ModuleError(
            f"{type(module).__name__} has no plan: neither the strategy's argument {option}=, nor "
            f"an attribute {attribute}, nor a config with {of_config}. Add one, such as "
            f"{attribute} = {example}."
        )
    return planned


def _of_configs(module: nn.Module, of_config: str) -> dict[str, Any]:
    """Of the outermost modules in which a plan of their config fits something."""
    planned: dict[str, Any] = {}
    done: list[str] = []
    for name, part in module.named_modules():
        plan = getattr(getattr(part, "config", None), of_config, None)
        if plan and not any(name.startswith(other + ".") for other in done):
            # A config plans for all variants of a model: what fits nothing is of another one.
            matched = {_joined(name, one): word for one, word in _fits(part, plan)}
            if matched:
                planned |= matched
                done.append(name)
    return planned


def of_classes(module: nn.Module) -> dict[str, Any]:
    """The plans of classes of transformers for what a config's plan leaves out: the head, and with
    it the embedding.
    """
    planned: dict[str, Any] = {}
    for name, part in module.named_modules():
        plan = vars(type(part)).get("_tp_plan") if hasattr(part, "config") else None
        if plan:
            planned |= {_joined(name, one): word for one, word in _fits(part, plan)}
            embedding = part.get_input_embeddings()
            planned |= {
                _joined(name, one): "embedding_rowwise"
                for one, it in part.named_modules()
                if it is embedding
            }
    return planned


def _matched(
    owner: str, module: nn.Module, plan: Plan | Iterable[str], option: str
) -> dict[str, Any]:
    words: dict[str, Any] = dict.fromkeys(plan)
    if isinstance(plan, Mapping):
        words.update(plan)
    planned = dict(_fits(module, words))
    for pattern in words:
        if not any(as_expression(pattern).fullmatch(name) for name in planned):
            names = [name for name, _ in module.named_modules() if name][:8]
            raise ConfigurationError(
                f"{option} names {pattern!r}, and {type(module).__name__} has no such module or "
                f"parameter. It has {', '.join(map(repr, names))}; '*' stands for one part of a "
                "name, as in 'blocks.*.up'."
            )
    return {_joined(owner, name): word for name, word in planned.items()}


def _fits(module: nn.Module, plan: Plan) -> Iterator[tuple[str, Any]]:
    expressions = [(as_expression(pattern), word) for pattern, word in plan.items()]
    for name, _ in (*module.named_modules(), *module.named_parameters()):
        for expression, word in expressions:
            if name and expression.fullmatch(name):
                yield name, word


def as_expression(pattern: str) -> re.Pattern[str]:
    """The names that a pattern fits; `*` stands for one part of a name."""
    return re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))


def _joined(owner: str, name: str) -> str:
    return f"{owner}.{name}".lstrip(".")
