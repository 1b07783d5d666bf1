"""Line breaking: what is broken means the same, and no line is too long where there is a comma to break at."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antegrad.render.layout import LINE, broken, listed

NAMES = st.lists(st.sampled_from(["x", "residual_12", "hidden_layer_3", "d_w0"]), min_size=1, max_size=40)
ARGUMENTS = st.lists(
    st.sampled_from(["x", "(a, b)", "np.float32(0)", "d_hidden_layer * 2", "'ab,bc->ac'"]), max_size=40
)


@given(NAMES, ARGUMENTS)
def test_a_broken_assignment_is_the_same_assignment(targets: list[str], arguments: list[str]) -> None:
    code = f"{', '.join(targets)} = scan({', '.join(arguments)})"
    *above, last = broken(code)
    text = "\n".join(["if True:", *above, f"    {last}"])
    block = ast.parse(text).body[0]
    assert isinstance(block, ast.If)
    assert ast.unparse(block.body[0]) == ast.unparse(ast.parse(code).body[0])
    assert all(len(line) <= LINE + 4 for line in above)


@pytest.mark.parametrize("code", ["x = y", f"x = {'y' * 200}", f"x = {' + '.join('abcdefgh' * 20)}"])
def test_what_cannot_be_broken_stays(code: str) -> None:
    assert broken(code) == [code]


@given(st.lists(st.sampled_from(["x", "weights", "a" * 30]), max_size=30))
def test_a_list_over_several_lines(items: list[str]) -> None:
    lines: list[Any] = listed("def f(", [f"{item}{i}" for i, item in enumerate(items)], "):")
    function = ast.parse("\n".join([*lines, "    pass"])).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert [a.arg for a in function.args.args] == [f"{item}{i}" for i, item in enumerate(items)]
    assert all(len(line) <= LINE for line in lines)
