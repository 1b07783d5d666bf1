"""Pieces of Python source: nested templates mean what the nested operations mean, with no parentheses too many."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antegrad.ir.code import ATOM, MULTIPLY, UNARY, Code, dtype_code, fill, python_literal
from antegrad.ir.types import DTYPES


class Symbol:
    """A value whose operators write down what was done, with every parenthesis."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *others: Any) -> Symbol:
        return Symbol(f"{self.text}({', '.join(map(written, others))})")

    def __getitem__(self, other: Any) -> Symbol:
        return Symbol(f"{self.text}[{written(other)}]")

    @property
    def T(self) -> Symbol:
        return Symbol(f"{self.text}.T")

    def __neg__(self) -> Symbol:
        return Symbol(f"(-{self.text})")

    def __invert__(self) -> Symbol:
        return Symbol(f"(~{self.text})")


def written(value: Any) -> str:
    return value.text if isinstance(value, Symbol) else repr(value)


def _binary(sign: str) -> Any:
    return lambda left, right: Symbol(f"({written(left)}{sign}{written(right)})")


BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "matmul": "@", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
for _name, _sign in BINARY.items():
    setattr(Symbol, f"__{_name}__", _binary(_sign))
SCOPE = {name: Symbol(name) for name in ("a", "b", "c", "f", "i")}

TEMPLATES = [
    *(f"{{x}} {sign} {{y}}" for sign in BINARY.values()),
    "-{x}",
    "~{x}",
    "{x}",
    "{x}.T",
    "{x}[{y}]",
    "f({x}, {y})",
    "f({x} + {y}, -{x})",
    "{x} * {x} + {y}",
    "-{x} ** {y}",
]
LEAVES = [
    (Code("a"), SCOPE["a"]),
    (Code("b"), SCOPE["b"]),
    (Code("-c", UNARY), -SCOPE["c"]),
    (Code("a / b", MULTIPLY), SCOPE["a"] / SCOPE["b"]),
]


@st.composite
def expressions(draw: Any, depth: int = 4) -> tuple[Code, Any]:
    """An expression as code, and the value that it must have."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(LEAVES))
    template = draw(st.sampled_from(TEMPLATES))
    (x, x_value), (y, y_value) = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    scope = {**SCOPE, "x": x_value, "y": y_value}
    value = eval(template.replace("{x}", "x").replace("{y}", "y"), scope)
    return fill(template, ("x", "y"), (x, y), {}), value


@given(expressions())
def test_nested_code_means_what_the_nested_values_mean(expression: tuple[Code, Any]) -> None:
    code, value = expression
    assert written(eval(code.text, dict(SCOPE))) == written(value), code.text


@pytest.mark.parametrize(
    ("template", "x", "expected"),
    [
        ("{x} * b", "a + b", "(a + b) * b"),
        ("{x} + b", "a * b", "a * b + b"),
        ("{x} + b", "a + b", "a + b + b"),
        ("b + {x}", "a + b", "b + (a + b)"),
        ("b - {x}", "-a", "b - -a"),
        ("{x} ** b", "-a", "(-a) ** b"),
        ("b ** {x}", "a ** b", "b ** a ** b"),
        ("{x} ** b", "a ** b", "(a ** b) ** b"),
        ("-{x}", "a ** b", "-a ** b"),
        ("{x}.T", "a @ b", "(a @ b).T"),
        ("{x}.T", "a.T", "a.T.T"),
        ("f({x})", "a + b", "f(a + b)"),
        ("f(axis={x})", "a + b", "f(axis=a + b)"),
        ("b[{x}]", "a + b", "b[a + b]"),
        ("{x}[b]", "a + b", "(a + b)[b]"),
        ("{x} < b", "a < b", "(a < b) < b"),
        ("{x} & b", "a < b", "(a < b) & b"),
        ("{x} < b", "a & b", "a & b < b"),
    ],
)
def test_just_the_parentheses_that_are_needed(template: str, x: str, expected: str) -> None:
    level = fill(x, (), (), {}).level
    assert fill(template, ("x",), (Code(x, level),), {}).text == expected


def test_a_template_that_is_one_operand_keeps_its_level() -> None:
    inner = fill("{x} + {x}", ("x",), (Code("a"),), {})
    through = fill("{x}", ("x",), (inner,), {})
    assert fill("{x} * b", ("x",), (through,), {}).text == "(a + a) * b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((), "()"),
        ((1,), "(1,)"),
        ([1, 2], "(1, 2)"),
        (((0,), (1, 2)), "((0,), (1, 2))"),
        ("ab->ba", "'ab->ba'"),
        (True, "True"),
        (DTYPES["f32"], "np.float32"),
        (DTYPES["bf16"], "bfloat16"),
        (DTYPES["bool"], "np.bool_"),
    ],
)
def test_params_are_written_as_python(value: Any, text: str) -> None:
    assert python_literal(value) == text


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_element_types_are_written_as_numpy_names(dtype: np.dtype) -> None:
    assert np.dtype(eval(dtype_code(dtype), {"np": np, "bfloat16": ml_dtypes.bfloat16})) == dtype


def test_atoms_are_never_put_in_parentheses() -> None:
    assert Code("f(a + b)").inside(ATOM) == "f(a + b)"
