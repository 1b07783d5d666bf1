"""Gamma and chi-square draws against `jax.random`: the same proposals are accepted, and the last bits may differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import random
from tests.random.comparison import everywhere, raw_key, reference

PARAMETERS = np.array([0.01, 0.3, 0.99, 1.0, 1.5, 7.0, 250.0], np.float32)
LIMIT = {"f32": 1e-4, "f64": 1e-11}
"""Allowed relative error: logarithms differ in the last bits between libraries, and the exponential magnifies that."""


@pytest.mark.parametrize(("name", "dtype"), [("loggamma", "f64"), ("gamma", "f32"), ("chisquare", "f32")])
def test_draws_are_those_of_jax(name: str, dtype: str) -> None:
    parameters = PARAMETERS.astype(dtype.replace("f", "float"))
    shape = (12, len(parameters))
    drawn: Callable[..., Any] = getattr(jax.random, name)
    expected = reference(drawn, raw_key(3), parameters, shape, parameters.dtype, wide=dtype == "f64")
    large = np.ones(shape, bool) if name == "loggamma" else expected > 1e-30  # below it f32 loses its digits
    draw = getattr(random, name)
    for how, (found,) in everywhere(lambda key: draw(key, parameters, shape, dtype), raw_key(3)).items():
        assert (found.shape, found.dtype) == (shape, parameters.dtype)
        np.testing.assert_allclose(found[large], expected[large], rtol=LIMIT[dtype], atol=LIMIT[dtype], err_msg=how)
        assert (found[~large] < 1e-29).all()


def test_shapes_and_moments() -> None:
    program = ag.capture(lambda key: random.chisquare(key, 4.0, (4000,)), raw_key(0))
    found = program.run(raw_key(0), device="cpu")
    assert abs(found.mean() - 4) < 0.2
    assert abs(found.var() - 8) < 1
    assert random.gamma(raw_key(0), np.ones((2, 0), np.float32)).shape == (2, 0)
    assert random.gamma(raw_key(0), 2.0).shape == ()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ag.ShapeError, match=r"random\.chisquare"):
        random.chisquare(raw_key(0), np.ones(3), (2,))
    with pytest.raises(ag.DTypeError, match=r"random\.gamma"):
        random.gamma(raw_key(0), 1.0, dtype="i32")
