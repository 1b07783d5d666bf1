"""The page of operators is what their docstrings say, and every docstring says what it must."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = _generator()
OPERATORS = {name: op for family in generate.families() for name, op in generate.operators(family).items()}


def test_the_page_is_up_to_date() -> None:
    assert generate.TARGET.read_text(encoding="utf-8") == generate.page(), "run python docs/generate.py"


@pytest.mark.parametrize("name", OPERATORS)
def test_a_docstring_has_shapes_edges_and_derivative(name: str) -> None:
    assert generate.missing(OPERATORS[name]) == []


def test_an_incomplete_docstring_is_found() -> None:
    def incomplete(x: Any) -> Any:
        """``x``.

        Shapes: any.
        """

    assert generate.missing(incomplete) == ["Edges", "Derivative"]
