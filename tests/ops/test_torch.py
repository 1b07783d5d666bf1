"""The cases of the tables once more against torch, where it is installed: values and gradients, in f64 and f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad.ir.types import is_float
from tests.ops.certification import Case
from tests.ops.test_coverage import tables
from tests.support import run

torch = pytest.importorskip("torch", reason="torch is not installed: its comparison is left out")


def reduced(name: str) -> Callable[..., Any]:
    """A reduction over `axis` as torch calls it."""

    def function(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = tuple(range(x.ndim)) if axis is None else axis
        return getattr(torch, name)(x, dim=axes, keepdim=keepdims) if x.ndim else getattr(torch, name)(x)

    return function


def along(function: Callable[..., Any], default: int = -1) -> Callable[..., Any]:
    return lambda x, axis=default: function(x, dim=axis)


SAME_NAME = [
    "add", "subtract", "multiply", "divide", "negative", "abs", "maximum", "minimum", "exp", "expm1", "exp2",
    "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh",
    "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "arctan2", "floor", "ceil", "trunc", "square", "reciprocal",
    "sigmoid", "logaddexp", "logaddexp2", "hypot", "lgamma", "digamma", "erf", "erfc", "erfinv", "power", "matmul",
    "copysign", "sinc", "deg2rad", "rad2deg", "xlogy", "logit",
]  # fmt: skip
RENAMED = {"negative": "neg", "power": "pow", "rsqrt": "rsqrt"}
TORCH: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, RENAMED.get(name, name)) for name in SAME_NAME},
    "i0e": torch.special.i0e,
    "i1e": torch.special.i1e,
    "round": torch.round,
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "softplus": torch.nn.functional.softplus,
    "silu": torch.nn.functional.silu,
    "mish": torch.nn.functional.mish,
    "selu": torch.nn.functional.selu,
    "elu": torch.nn.functional.elu,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "softsign": torch.nn.functional.softsign,
    "hard_tanh": torch.nn.functional.hardtanh,
    "hard_sigmoid": torch.nn.functional.hardsigmoid,
    "hard_silu": torch.nn.functional.hardswish,
    "sum": reduced("sum"),
    "mean": reduced("mean"),
    "logsumexp": reduced("logsumexp"),
    "softmax": along(torch.softmax),
    "log_softmax": along(torch.log_softmax),
}
"""What torch calls the same function with the same conventions."""

GRADIENT = {"f64": 1e-11, "f32": 2e-4}
"""Allowed difference of two gradients, relative to the largest element: neither library is the truth."""
VALUE = {"f64": 1e-12, "f32": 2e-5}
ROUGH = {"hard_sigmoid": 1e-7, "digamma": 1e-9}
"""What torch computes less exactly in f64: a sixth rounded to f32, and the trigamma function by a short series."""


def comparable(case: Case) -> bool:
    """Whether torch has the function, takes the operands, and gives one array."""
    known = case.name in TORCH and set(case.params) <= {"axis", "keepdims"} and not case.sequence
    types = {text.partition("[")[0].partition("{")[0] for text in case.operands}
    tuple_axis = isinstance(case.params.get("axis"), tuple)
    return known and types <= {"f64", "f32"} and len(types) == 1 and not tuple_axis and case.out is None


CASES = [case for case in tables() if comparable(case)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch(case: Case) -> None:
    dtype = case.operands[0][:3]
    tensors = [torch.tensor(np.array(a), requires_grad=True) for a in case.arrays]
    expected = TORCH[case.name](*tensors, **case.params)
    program = ag.capture(case.call, *case.arrays)
    found = run(program, case.arrays, "host")[0]
    assert_near(found, expected.detach().numpy(), VALUE[dtype], "value")
    if any("{" in text for text in case.operands) or not case.differentiable or not is_float(found.dtype):
        return  # at awkward points the conventions differ, and are tested on their own
    weights = np.cos(np.arange(found.size, dtype=found.dtype)).reshape(found.shape)
    expected.backward(torch.tensor(weights))
    cotangents = ag.vjp(case.call, *case.arrays)[1](weights)
    for cotangent, tensor in zip(cotangents, tensors, strict=True):
        reference = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
        allowed = max(GRADIENT[dtype], ROUGH.get(case.name, 0))
        assert_near(np.asarray(cotangent), reference, allowed, "gradient")


def assert_near(found: np.ndarray, expected: np.ndarray, allowed: float, what: str) -> None:
    assert found.shape == expected.shape, what
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), finite, err_msg=what)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=what)
    largest = max(np.max(np.abs(expected[finite]), initial=0), 1)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=allowed, atol=allowed * largest, err_msg=what)


def test_every_family_is_compared() -> None:
    """A name that no case has any more would leave its function out without a word."""
    assert {case.name for case in CASES} == set(TORCH)
