"""Pieces of Python source with their precedence, so that expressions nest with just the parentheses they need."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from antegrad.ir.types import BF16, SHORT_NAMES

ATOM, POWER, UNARY, MULTIPLY, ADD, SHIFT, AND, XOR, OR, COMPARE, ANY = range(18, 7, -1)

_OPERATORS: dict[type, int] = {
    ast.Pow: POWER,
    **dict.fromkeys([ast.Mult, ast.MatMult, ast.Div, ast.FloorDiv, ast.Mod], MULTIPLY),
    **dict.fromkeys([ast.Add, ast.Sub], ADD),
    **dict.fromkeys([ast.LShift, ast.RShift], SHIFT),
    ast.BitAnd: AND,
    ast.BitXor: XOR,
    ast.BitOr: OR,
}


class Code(NamedTuple):
    """A Python expression and the precedence of its outermost operator."""

    text: str
    level: int = ATOM

    def inside(self, level: int) -> str:
        """The text, in parentheses when it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def _level(node: ast.AST) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)]
    if isinstance(node, ast.UnaryOp):
        return UNARY
    return COMPARE if isinstance(node, ast.Compare) else ATOM


def _needed(node: ast.AST, child: ast.AST) -> int:
    """The precedence that `child` must have to stand in `node` bare."""
    if isinstance(node, ast.BinOp):
        level = _OPERATORS[type(node.op)]
        tighter_on = node.left if isinstance(node.op, ast.Pow) else node.right
        return level + 1 if child is tighter_on else level
    if isinstance(node, ast.UnaryOp):
        return UNARY
    if isinstance(node, ast.Compare):
        return COMPARE + 1
    return ATOM if isinstance(node, (ast.Attribute, ast.Subscript)) and node.value is child else ANY


@lru_cache(maxsize=4096)
def _analyse(template: str, names: tuple[str, ...]) -> tuple[int, dict[str, int], tuple[str, ...]]:
    """Level of `template`, the level each placeholder needs, and the template split around its placeholders."""
    pieces = tuple(re.split(r"\{(\w+)\}", template))
    tree = ast.parse(re.sub(r"\{(\w+)\}", r"_hole_\1", template), mode="eval").body
    needs = dict.fromkeys(names, ANY)
    if isinstance(tree, ast.Name):
        needs[tree.id.removeprefix("_hole_")] = ATOM
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child.id.startswith("_hole_"):
                hole = child.id.removeprefix("_hole_")
                needs[hole] = max(needs.get(hole, ANY), _needed(node, child))
    return _level(tree), needs, pieces


def fill(template: str, names: Sequence[str], operands: Sequence[Code], params: Mapping[str, Any]) -> Code:
    """Put operands (by name) and params (by ``repr``) into a template such as ``"np.sum({x}, axis={axes})"``."""
    level, needs, pieces = _analyse(template, tuple(names))
    by_name = dict(zip(names, operands, strict=False))
    out = list(pieces)
    for position in range(1, len(pieces), 2):
        hole = pieces[position]
        out[position] = by_name[hole].inside(needs[hole]) if hole in by_name else python_literal(params[hole])
    return Code("".join(out), level)


def python_literal(value: Any) -> str:
    """The source text of a param: numbers, strings, tuples, dtypes and small arrays."""
    if isinstance(value, np.dtype):
        return dtype_code(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(python_literal(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def dtype_code(dtype: np.dtype) -> str:
    """``np.float32``, ``np.bool_``, or ``bfloat16`` (imported from ml_dtypes at the head of the module)."""
    if dtype == BF16:
        return "bfloat16"
    return "np.bool_" if SHORT_NAMES[dtype] == "bool" else f"np.{dtype.name}"
