"""Programs: they cannot be changed, and the checker refuses every kind of broken one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import ops, tree
from antegrad.ir.program import Equation, Program, Source, Value, params_key
from antegrad.ops.elementwise import add, multiply
from antegrad.ops.sort import sort_p

V = ag.spec((3,))
SOURCE = Source("/home/user/net.py", 7, "0")


def program(**changes: Any) -> Program:
    """``z = (x + y) * y``, with some parts replaced."""
    x, y, total, z = (Value(V, name) for name in ("x", "y", "total", "z"))
    parts = {
        "name": "small",
        "inputs": (x, y),
        "input_names": ("x", "y"),
        "outputs": (z,),
        "output_names": ("z",),
        "equations": (
            Equation(add, (x, y), (total,), {}, SOURCE),
            Equation(multiply, (total, y), (z,), {}, SOURCE),
        ),
    }
    return Program(**{**parts, **{key: change(parts) for key, change in changes.items()}})


def second(parts: dict[str, Any], **changes: Any) -> tuple[Equation, ...]:
    """The equations, with something replaced in the second."""
    first, last = parts["equations"]
    return first, replace(last, **changes)


def test_the_right_program_passes() -> None:
    assert [str(eq.primitive) for eq in program().equations] == ["add", "multiply"]


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("equations", lambda p: p["equations"][::-1], r"equation 0 \(multiply; layer 0, /home/user/net.py:7\) uses"),
        ("equations", lambda p: second(p, inputs=(Value(V, "stray"),) * 2), "uses stray: f32.3. before it is defined"),
        ("equations", lambda p: second(p, outputs=p["equations"][0].outputs), "equation 1 .* defines total.* a second"),
        ("equations", lambda p: second(p, outputs=(p["inputs"][0],)), "defines x: f32.3. a second time"),
        ("equations", lambda p: second(p, outputs=(Value(ag.spec(4)),)), r"gives f32\[4\], but .* says f32\[3\]"),
        ("equations", lambda p: second(p, outputs=(Value(ag.spec(3, "f64")),)), r"gives f64\[3\]"),
        ("equations", lambda p: second(p, outputs=()), "gives , but its type rule says"),
        ("inputs", lambda p: (p["inputs"][0], Value(ag.spec(4), "y")), "before it is defined"),
        ("outputs", lambda p: (Value(V, "nowhere"),), "output z .*nowhere.* is never defined"),
        ("inputs", lambda p: p["inputs"][:1] * 2, "lists one value as two inputs"),
        ("input_names", lambda p: ("x", "x"), "two inputs of one name: x, x"),
        ("input_names", lambda p: ("x",), "as many names as inputs"),
        ("output_names", lambda p: (), "as many names as inputs and outputs"),
        ("captured", lambda p: (np.zeros(4, np.float32),), r"captured array float32\(4,\) is not y: f32\[3\]"),
        ("captured", lambda p: (np.zeros(3),), r"captured array float64\(3,\)"),
    ],
)  # fmt: skip
def test_a_broken_program_is_refused(part: str, change: Callable[..., Any], message: str) -> None:
    with pytest.raises(ag.ProgramError, match=message):
        program(**{part: change})


def test_operands_that_the_type_rule_refuses() -> None:
    """The rule's own words, with the number and the place of the equation."""
    x, y, z = Value(V, "x"), Value(ag.spec((4,)), "y"), Value(V, "z")
    with pytest.raises(ag.ProgramError, match=r"equation 0 \(add; layer 0.*f32\[3\] and f32\[4\]"):
        Program("p", (x, y), ("x", "y"), (z,), ("z",), (Equation(add, (x, y), (z,), {}, SOURCE),))


def test_one_equation_that_defines_a_value_twice() -> None:
    x, z = Value(V, "x"), Value(V, "z")
    with pytest.raises(ag.ProgramError, match=r"defines z.* a second time"):
        Program("p", (x,), ("x",), (z,), ("z",), (Equation(sort_p, (x, x), (z, z), {"axis": 0}, SOURCE),))


def test_passes_check_what_they_make() -> None:
    """`replace`, by which every pass makes its result, runs the checker."""
    right = program()
    with pytest.raises(ag.ProgramError, match="never defined"):
        replace(right, equations=right.equations[:1])


def test_nothing_can_be_assigned() -> None:
    right = program()
    for target, name in ((right, "equations"), (right.equations[0], "inputs"), (right.equations[0].source, "line")):
        with pytest.raises(FrozenInstanceError):
            setattr(target, name, ())
    with pytest.raises(AttributeError):
        right.inputs[0].shape = (4,)  # type: ignore[attr-defined]


def test_params_cannot_be_changed() -> None:
    params = {"axis": 0}
    x, z = Value(V, "x"), Value(V, "z")
    equation = Equation(sort_p, (x,), (z,), params, SOURCE)
    params["axis"] = 1
    assert equation.params["axis"] == 0
    with pytest.raises(TypeError):
        equation.params["axis"] = 1  # type: ignore[index]


def test_arrays_of_a_program_are_its_own() -> None:
    """What the user writes into an array after capture changes no program, whether it was embedded or captured."""
    small, large = np.ones(3, np.float32), np.ones((5, 20), np.float32).T
    captured = ag.capture(lambda x: (x + small, x.sum() + large), V)
    small[:], large[:] = 7, 7
    first, second = captured.run(np.zeros(3, np.float32), device="host")
    np.testing.assert_array_equal(first, np.ones(3))
    np.testing.assert_array_equal(second, np.ones((20, 5)))
    with pytest.raises(ValueError, match="read-only"):
        captured.captured[0][0] = 7
    constant = next(eq for eq in captured.equations if eq.primitive.name == "constant")
    with pytest.raises(ValueError, match="read-only"):
        constant.params["value"][0] = 7


def test_programs_are_compared_by_identity() -> None:
    first, second = program(), program()
    assert first != second
    assert len({first, second, first}) == 2


def test_inputs_are_found_by_name() -> None:
    right = program()
    assert right.input_index("y") == 1
    with pytest.raises(ag.NameMissing, match="small has no input 'w'; it has x, y"):
        right.input_index("w")


def test_all_equations_goes_down_into_sub_programs() -> None:
    def outer(c: Any, x: Any) -> Any:
        return ag.cond(x > 0, lambda c: ops.tanh(c), lambda c: ops.exp(c), c), c

    found = [eq.primitive.name for eq in ag.capture(lambda xs: ag.scan(outer, 0.0, xs), V).all_equations()]
    assert {"scan", "cond", "tanh", "exp"} <= set(found)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (np.float32(0), np.float32(-0.0), False),
        (np.float32(np.nan), np.float32(np.nan), True),
        (np.zeros(4, np.int8), np.zeros(1, np.int32), False),
        (np.zeros((2, 3)), np.zeros((3, 2)), False),
        (np.zeros(2, np.float16), np.zeros(2, ag.spec((), "bf16").dtype), False),
        (np.arange(3), np.arange(3), True),
    ],
)
def test_params_are_compared_bit_for_bit(a: Any, b: Any, equal: bool) -> None:
    keys = [params_key({"value": np.asarray(value)}) for value in (a, b)]
    assert (keys[0] == keys[1]) is equal


@pytest.mark.parametrize(
    ("source", "location", "text"),
    [
        (Source("/a/b/net.py", 7, "0.w"), "net.py:7", "layer 0.w, /a/b/net.py:7"),
        (Source("C:\\nets\\net.py", 7), "net.py:7", "C:\\nets\\net.py:7"),
        (Source("", 0, "0"), "", "layer 0"),
        (Source(), "", ""),
    ],
)
def test_sources(source: Source, location: str, text: str) -> None:
    assert (source.location, str(source)) == (location, text)


def test_repr_says_what_goes_in_and_out() -> None:
    assert repr(program()) == "<Program small(x: f32[3], y: f32[3]) -> (z: f32[3]), 2 equations>"


@pytest.mark.parametrize("copied", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_is_the_same_program(copied: Callable[[Program], Program]) -> None:
    """With embedded and captured arrays, a sub-program and a structure; its arrays stay read-only."""
    table = np.arange(100, dtype=np.float32)

    def function(params: dict[str, Any], x: Any) -> Any:
        h = ag.scan(lambda c, row: (c + ops.tanh(row) * np.array([1.0, 2.0, 3.0], np.float32), c), params["b"], x)[0]
        return {"loss": ops.sum(h * table[:3]) + ops.sum(table)}

    program = ag.capture(function, {"b": ag.spec((3,))}, ag.spec((4, 3)))
    for original in (program, ag.reverse(program)):
        found = copied(original)
        assert found.python() == original.python()
        assert found.stablehlo() == original.stablehlo()
        assert found.structure == original.structure
        arrays = [*found.captured, *(v for e in found.all_equations() for v in e.params.values())]
        assert not any(a.flags.writeable for a in arrays if isinstance(a, np.ndarray))
        x, b = np.ones((4, 3), np.float32), np.ones(3, np.float32)
        pair = (tree.leaves(p.run({"b": b}, x, device="host")) for p in (found, original))
        assert all((a == b).all() for a, b in zip(*pair, strict=True))
