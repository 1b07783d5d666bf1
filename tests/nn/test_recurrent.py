"""GRU and LSTM against torch, against a loop in NumPy, and step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random
from tests.nn.torch_reference import assert_same_as_torch, require_torch
from tests.support import assert_close, devices, run

KEY = random.key(0)
LAYERS: dict[str, Any] = {"GRU": nn.GRU, "LSTM": nn.LSTM}
NAMES = [
    (r"^(\w+)_(ih|hh)_l(\d+)$", r"forward.\3.\2.\1"),
    (r"^(\w+)_(ih|hh)_l(\d+)_reverse$", r"backward.\3.\2.\1"),
    *((r"ih\.", "input."), (r"hh\.", "recurrent."), (r"weight$", "w"), (r"bias$", "b")),
]
FORMS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"layers": 2, "bias": False}, True),
    ({"bidirectional": True, "layers": 2}, True),
]
"""Options of the constructor, and whether there is a state to start with."""


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def parts(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("form", "started"), FORMS)
def test_is_that_of_torch(kind: str, form: dict[str, Any], started: bool) -> None:
    torch = require_torch()
    count = form.get("layers", 1) * (2 if form.get("bidirectional") else 1)
    options = {"num_layers": form.get("layers", 1), **{k: v for k, v in form.items() if k != "layers"}}
    theirs = getattr(torch.nn, kind)(3, 5, batch_first=True, **options)
    states = [draw(count, 2, 5, seed=seed) for seed in (1, 2)][: 2 if kind == "LSTM" else 1] if started else []

    def packed(states: tuple[Any, ...]) -> Any:
        return None if not states else states if kind == "LSTM" else states[0]

    assert_same_as_torch(
        LAYERS[kind](3, 5, key=KEY, dtype="f64", **form),
        NAMES,
        theirs,
        lambda model, x, *states: model(x, packed(states)),
        lambda module, x, *states: module(x, packed(states)),
        draw(2, 4, 3),
        *states,
    )


def by_loop(layer: Any, x: np.ndarray) -> np.ndarray:
    """The outputs [L, features] of one layer for one sequence, gate by gate."""

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    cell, outputs = layer.forward[0], []
    (wx, bx), (wh, bh) = (cell.input.w, cell.input.b), (cell.recurrent.w, cell.recurrent.b)
    h = c = np.zeros(cell.features)
    for token in x:
        a, b = token @ wx + bx, h @ wh + bh
        if isinstance(layer, nn.GRU):
            (ar, az, an), (br, bz, bn) = np.split(a, 3), np.split(b, 3)
            z = sigmoid(az + bz)
            h = (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h
        else:
            i, f, g, o = np.split(a + b, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)


def with_biases(layer: Any) -> Any:
    """The layer with biases that are not 0."""
    parameters = layer.named_parameters()
    return layer.with_parameters({n: draw(*p.shape, seed=len(n)).astype(p.dtype) for n, p in parameters.items()})


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("device", devices())
def test_is_a_loop_over_the_gates(kind: str, device: str) -> None:
    layer, x = with_biases(LAYERS[kind](3, 5, key=KEY, dtype="f64")), draw(6, 3)
    found = ag.compile(lambda layer, x: layer(x)[0], device=device)(layer, x)
    assert_close(np.asarray(found), by_loop(layer, x), 1e-13, kind)


@pytest.mark.parametrize("kind", LAYERS)
def test_reverse_goes_from_the_end(kind: str) -> None:
    forward, backward = (LAYERS[kind](3, 5, key=KEY, reverse=way) for way in (False, True))
    x = draw(2, 4, 3).astype(np.float32)
    (y, states), (flipped, other) = backward(x), forward(x[:, ::-1])
    np.testing.assert_array_equal(y, flipped[:, ::-1])
    for a, b in zip(parts(states), parts(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_cell_goes_step_by_step(kind: str) -> None:
    layer, x = LAYERS[kind](3, 5, key=KEY), draw(2, 4, 3).astype(np.float32)
    y, states = layer(x)
    own = np.zeros((2, 5), np.float32)
    state: Any = own if kind == "GRU" else (own, own)
    for t in range(4):
        state = layer.forward[0](x[:, t], state)
        np.testing.assert_allclose(parts(state)[0], y[:, t], rtol=1e-5, atol=1e-6)
    for a, b in zip(parts(state), parts(states), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_state_carries_a_sequence_on(kind: str) -> None:
    layer, x = LAYERS[kind](3, 5, key=KEY, layers=2), draw(2, 6, 3).astype(np.float32)
    y, _ = layer(x)
    first, state = layer(x[:, :2])
    second, _ = layer(x[:, 2:], state)
    np.testing.assert_allclose(np.concatenate((first, second), 1), y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_sequences_without_batch_or_tokens(kind: str) -> None:
    layer = LAYERS[kind](3, 5, key=KEY, layers=2)
    y, state = layer(np.ones((4, 3), np.float32))
    assert y.shape == (4, 5)
    assert parts(state)[0].shape == (2, 5)
    y, state = layer(np.ones((2, 0, 3), np.float32))
    assert y.shape == (2, 0, 5)
    np.testing.assert_array_equal(parts(state)[0], np.zeros((2, 2, 5), np.float32))


@pytest.mark.parametrize("kind", LAYERS)
def test_bf16(kind: str) -> None:
    narrow, x = LAYERS[kind](3, 5, key=KEY, dtype="bf16"), draw(2, 4, 3).astype(np.float32)
    y, state = narrow(ops.convert(x, "bf16"))
    assert {str(each.dtype) for each in (y, *parts(state))} == {"bfloat16"}
    wide = LAYERS[kind](3, 5, key=KEY, dtype="f64")
    wide = wide.with_parameters({n: p.astype(np.float64) for n, p in narrow.named_parameters().items()})
    assert_close(y, wide(ops.convert(ops.convert(x, "bf16"), "f64"))[0], 0.02, kind)


@pytest.mark.parametrize("kind", LAYERS)
def test_weights_start_within_one_over_the_root(kind: str) -> None:
    layer = LAYERS[kind](100, 25, key=KEY)
    for name, value in layer.named_parameters().items():
        if name.endswith("w"):
            assert 0.19 < np.abs(value).max() <= 0.2
        else:
            assert not value.any()


def test_equations_know_their_layer() -> None:
    program = ag.capture(
        lambda m, x: m(x), nn.Sequential(nn.Function(ops.tanh), nn.GRU(3, 5, key=KEY)), ag.spec((4, 3))
    )
    layers = {equation.source.layer for equation in program.equations}
    (body,) = [inner for equation in program.equations for inner in equation.programs]
    assert "1.forward.0.input" in layers
    assert "1.forward.0.recurrent" in {equation.source.layer for equation in body.equations}


def test_host_and_xla_agree() -> None:
    layer = nn.LSTM(3, 5, key=KEY, bidirectional=True, layers=2)
    program = ag.capture(lambda x: layer(x), ag.spec((2, 7, 3)))
    x = draw(2, 7, 3).astype(np.float32)
    outputs = [run(program, [x], device) for device in devices()]
    for a, b in zip(*outputs, strict=True):
        assert_close(a, b.astype(np.float64), 1e-6, "host against XLA")


def test_what_does_not_fit_is_refused() -> None:
    layer = nn.LSTM(3, 5, key=KEY)
    x = np.ones((2, 4, 3), np.float32)
    with pytest.raises(ag.ShapeError, match=r"Dense\(3 -> 20\).*f32\[4,2,4\]"):
        layer(np.ones((2, 4, 4), np.float32))
    with pytest.raises(ag.ShapeError, match=r"LSTM takes an input \(..., length, inputs\), found f32\[3\]"):
        layer(np.ones(3, np.float32))
    h = np.ones((1, 3, 5), np.float32)
    with pytest.raises(ag.ShapeError, match=r"pair \(h, c\), each f32\[1,2,5\], found f32\[1,3,5\], f32\[1,3,5\]"):
        layer(x, (h, h))
    with pytest.raises(ag.ShapeError, match=r"GRU: the initial state is one array f32\[1,2,5\], found f64\[1,2,5\]"):
        nn.GRU(3, 5, key=KEY)(x, np.ones((1, 2, 5)))
    with pytest.raises(ValueError, match="at least one layer"):
        nn.GRU(3, 5, key=KEY, layers=0)
    with pytest.raises(ValueError, match="bidirectional and reverse"):
        nn.GRU(3, 5, key=KEY, bidirectional=True, reverse=True)
