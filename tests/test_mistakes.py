"""Common mistakes of shape, type and axis: each message has the operator, every type involved, and the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import antegrad as ag
from antegrad import ops

X, V, COUNTS = ag.spec((2, 3)), ag.spec((4,)), ag.spec((3,), "i32")
IMAGES = ag.spec((1, 8, 8, 3))

MISTAKES: dict[str, tuple[Callable[..., Any], tuple[ag.TensorType, ...], str]] = {
    "matmul": (lambda a, b: a @ b, (X, V), "sizes 3 and 4"),
    "add": (lambda a, b: a + b, (X, V), "do not broadcast"),
    "sum": (lambda a: ops.sum(a, axis=2), (X,), "axis 2.*from -2 to 1"),
    "softmax": (lambda a: ops.softmax(a, axis=3), (X,), "axis 3.*from -2 to 1"),
    "take": (lambda a: ops.take(a, 1, axis=5), (X,), "axis 5.*from -2 to 1"),
    "reshape": (lambda a: ops.reshape(a, (4, 2)), (X,), "6 elements.*needs 8"),
    "concatenate": (lambda a, b: ops.concatenate([a, b], 0), (X, V), "along axis 0"),
    "stack": (lambda a, b: ops.stack([a, b]), (X, V), "one shape"),
    "broadcast_to": (lambda a: ops.broadcast_to(a, (3, 3)), (X,), r"\(3, 3\)"),
    "transpose": (lambda a: ops.transpose(a, (0, 0)), (X,), r"\(0, 0\)"),
    "split": (lambda a: ops.split(a, 2, axis=1), (X,), "axis 1.*2 equal"),
    "einsum": (lambda a, b: ops.einsum("ij,jk->ik", a, b), (X, X), "label 'j'"),
    "exp": (ops.exp, (COUNTS,), "float"),
    "where": (lambda a: ops.where(a, a, a), (X,), "bool"),
    "subtract": (lambda a, b: a[0] - b, (X, COUNTS), "astype"),
    "conv": (ops.conv, (IMAGES, ag.spec((3, 3, 4, 8))), "4 channels.*3 on axis 3"),
    "max_pool": (lambda a: ops.max_pool(a, 9), (IMAGES,), "window of 9.*axis 1"),
    "solve": (ops.solve, (ag.spec((3, 3)), V), "square"),
    "top_k": (lambda a: ops.top_k(a, 9), (X,), "9 elements along axis 1"),
    "scaled_dot_product_attention": (
        lambda q, k: ops.scaled_dot_product_attention(q, k, k), (ag.spec((1, 2, 4, 8)), ag.spec((1, 2, 4, 7))), "E",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    function, types, reason = MISTAKES[name]

    def mistaken(*operands: Any) -> Any:
        return function(*operands)

    with pytest.raises((ag.ShapeError, ag.DTypeError)) as error:
        ag.capture(mistaken, *types)
    message = str(error.value)
    assert message.startswith(name)
    assert re.search(reason, message), message
    shown = [ag.spec(types[0].shape[1:], "f32"), *types[1:]] if name == "subtract" else types
    assert all(str(type) in message for type in shown), message
    assert re.search(r"\n  at .*test_mistakes\.py:\d+", message), message


def test_a_missing_rule_says_how_to_add_it() -> None:
    """Which primitive, what was asked of it, and where its class is."""
    from antegrad.ir.primitive import REGISTRY, Primitive

    class Unfinished(Primitive):
        def result(self, x: ag.TensorType) -> ag.TensorType:
            return x

    unfinished = Unfinished()
    try:
        program = ag.capture(lambda x: ops.sum(ops.bind(unfinished, x)), V)
        for use, asked in {
            "differentiated": lambda: ag.reverse(program),
            "printed as Python": program.python,
            "lowered to StableHLO": program.stablehlo,
        }.items():
            with pytest.raises(ag.RuleMissing, match=rf"primitive unfinished cannot be {use}.*Unfinished.*write `"):
                asked()
    finally:
        del REGISTRY["unfinished"]
