"""What every layer is tested for: both devices, pickling, a batch of inputs, the gradient, and 16-bit floats."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

import antegrad as ag
from antegrad import tree
from antegrad.ir.types import DTYPES, is_float
from tests.support import assert_close, devices, run

EPS = 2.0**-23


def widened(value: Any) -> Any:
    """A pytree with its floats in f64."""
    return tree.map(lambda leaf: np.asarray(leaf, np.float64) if is_float(np.asarray(leaf).dtype) else leaf, value)


def call(layer: Any, *arguments: Any) -> Any:
    return layer(*arguments)


def check_layer(layer: Any, *inputs: Any, allowed: float = 16, order: int = 2, gradient: bool = True) -> None:
    """`layer` in f32 on all devices within `allowed` eps of itself in f64, and everything else that a layer must do."""
    truth = call(widened(layer), *widened(inputs))
    program = ag.capture(call, layer, *inputs)
    for device in devices():
        (found,) = run(program, [layer, *inputs], device)
        assert found.dtype == np.float32
        assert_close(found, truth, allowed * EPS, f"{type(layer).__name__} on {device}")
    direct = np.asarray(layer(*inputs))
    again = pickle.loads(pickle.dumps(layer))
    assert tree.structure(again) == tree.structure(layer)
    np.testing.assert_array_equal(again(*inputs), direct)
    batch = [np.stack([x, x[..., ::-1]]) for x in inputs]
    mapped = ag.vmap(call, in_axes=(None, *[0] * len(inputs)))(layer, *batch)
    for index in range(2):
        assert_close(mapped[index], np.asarray(layer(*(x[index] for x in batch))), allowed * EPS, "vmap")
    if gradient:
        ag.check_gradient(call, layer, *inputs, order=order)


def check_bf16(layer: Any, x: np.ndarray) -> None:
    """A bf16 input gives a bf16 result: the result for the same numbers in f32, rounded once."""
    narrow = x.astype(DTYPES["bf16"])
    found, exact = np.asarray(layer(narrow)), np.asarray(layer(narrow.astype(np.float32)))
    assert found.dtype == DTYPES["bf16"]
    np.testing.assert_array_equal(found, exact.astype(DTYPES["bf16"]))
