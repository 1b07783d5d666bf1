"""The plain text of a program."""

from __future__ import annotations

from typing import Any

import numpy as np

import antegrad as ag
from antegrad import nn, ops
from antegrad.ops.dispatch import layer


def numbered(text: str) -> str:
    """Without the line numbers of this file, which change with it."""
    import re

    return re.sub(r"test_text\.py:\d+", "test_text.py:N", text)


def test_golden() -> None:
    def loss(params: Any, x: Any) -> Any:
        with layer("0"):
            h = ops.relu(x @ params["w"] + params["b"])
        return ops.mean(h.astype("f64"))

    program = ag.capture(loss, {"w": ag.spec((3, 2)), "b": ag.spec((2,))}, ag.spec((5, 3)))
    assert numbered(str(program)) == GOLDEN


GOLDEN = """\
program loss(b: f32[2], w: f32[3,2], x: f32[5,3]):
  t0: f32[5,2] = dot_general(x, w, contract=((1), (0)), batch=((), ()), precision=default)  # 0  test_text.py:N
  t1: f32[5,2] = broadcast_in_dim(b, shape=(5, 2), dims=(1))                # 0  test_text.py:N
  t2: f32[5,2] = add(t0, t1)                                                # 0  test_text.py:N
  h: f32[5,2] = relu(t2)                                                    # 0  test_text.py:N
  t3: f64[5,2] = convert(h, dtype=f64)                                      # test_text.py:N
  t4: f64[] = reduce_sum(t3, axes=(0, 1))                                   # test_text.py:N
  t5: f64[] = constant(value=10.0)
  out: f64[] = divide(t4, t5)                                               # test_text.py:N
  return out"""


def test_backward_equations_are_marked() -> None:
    gradient = ag.reverse(ag.capture(lambda x: ops.sum(ops.tanh(x)), ag.spec((3,))))
    marked = [line for line in str(gradient).splitlines() if line.endswith("backward")]
    assert len(marked) == sum(eq.source.part == "backward" for eq in gradient.equations) > 0


def test_sub_programs_stand_below_with_their_names() -> None:
    def cell(c: Any, x: Any) -> Any:
        total = c + x
        return total, total

    text = str(ag.capture(lambda xs: ag.scan(cell, 0.0, xs), ag.spec((4,))))
    assert "body=cell, counts=(0, 1), length=4, reverse=False" in text
    assert "\n  program cell(" in text
    assert "    total: f32[] = add(" in text


def test_captured_arrays_are_visible() -> None:
    table = np.zeros((10, 10), np.float32)
    assert "(x: f32[10], table: f32[10,10])" in str(ag.capture(lambda x: x @ table, ag.spec((10,))))


def test_outputs_that_could_not_have_their_name() -> None:
    def function(x: Any) -> Any:
        return {"lambda": x + 1, "x": x * 2}

    assert numbered(str(ag.capture(function, ag.spec(())))).endswith("return lambda, x=x_1")


def test_layer_paths_of_a_model() -> None:
    model = nn.Sequential(nn.Dense(2, 3, key=ag.random.key(0)), ops.relu, nn.Dense(3, 1, key=ag.random.key(1)))
    text = str(ag.capture(lambda model, x: model(x), model, ag.spec((5, 2))))
    assert "program program(0.w: f32[2,3], 0.b: f32[3], 2.w: f32[3,1], 2.b: f32[1], x: f32[5,2]):" in text
    assert "h0_1: f32[5,3] = relu(h0)" in text
    assert "# 2  " in text
