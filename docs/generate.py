"""Writes docs/operators.md from the docstrings of `antegrad.ops`: run ``python docs/generate.py``."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from antegrad import ops
from antegrad.ir.primitive import Primitive

TARGET = Path(__file__).parent / "operators.md"
LABELS = ("Shapes", "Edges", "Derivative")
HEAD = """# Operators

Everything in `antegrad.ops`, by family, from the docstrings (`python docs/generate.py` writes this page). Each
operator works at once on arrays and traces on tensors. `dy` is the cotangent of the result.
"""


def families() -> list[str]:
    """The modules of `antegrad.ops` in the order in which it imports them."""
    source = inspect.getsource(ops)
    return re.findall(r"^from antegrad\.ops\.(\w+) import \*", source, re.MULTILINE)


def operators(family: str) -> dict[str, Any]:
    """The public operators of a family by name; what only other operators use has a name that ends in ``_p``."""
    module = importlib.import_module(f"antegrad.ops.{family}")
    named = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in named.items() if not name.endswith("_p") and callable(value)}


def documentation(operator: Any) -> str:
    """The docstring: for a primitive that of its class."""
    return inspect.getdoc(type(operator) if isinstance(operator, Primitive) else operator) or ""


def call(name: str, operator: Any) -> str:
    """``clip(x, low=None, high=None)``, without annotations."""
    function = operator.__call__ if isinstance(operator, Primitive) else operator
    parameters = inspect.signature(function).parameters.values()
    if isinstance(operator, Primitive) and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return f"{name}({', '.join(operator.operand_names)})"
    shown = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    markers = ["*"] if any(p.kind is p.KEYWORD_ONLY for p in parameters) else []
    first = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), len(shown))
    return f"{name}({', '.join([*shown[:first], *markers, *shown[first:]])})"


def missing(operator: Any) -> list[str]:
    """The labelled lines that a docstring lacks."""
    text = documentation(operator)
    return [label for label in LABELS if not re.search(rf"^{label}: ", text, re.MULTILINE)]


def entry(name: str, operator: Any) -> str:
    text = re.sub(r"``(.+?)``", r"`\1`", documentation(operator).strip(), flags=re.DOTALL)
    text = re.sub(rf"^({'|'.join(LABELS)}|Source|Raises): ", r"- **\1**: ", text, flags=re.MULTILINE)
    return f"### `{call(name, operator)}`\n\n{text}\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for family in families():
        found = operators(family)
        if found:
            module = importlib.import_module(f"antegrad.ops.{family}")
            parts.append(f"## {family}\n\n{(module.__doc__ or '').strip()}\n")
            parts += [entry(name, operator) for name, operator in found.items()]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    print(f"{TARGET}: {sum(len(operators(family)) for family in families())} operators")
