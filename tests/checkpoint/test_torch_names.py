"""Weights by a map of names: rules and functions, layouts, stacked layers, element types, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import checkpoint, nn, random
from antegrad.checkpoint import load_torch_names

KEY = random.key(0)
LINEAR = [(r"weight$", "w"), (r"bias$", "b")]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def linear(inputs: int = 3, outputs: int = 2) -> dict[str, np.ndarray]:
    """As torch stores it."""
    return {"weight": draw(outputs, inputs), "bias": draw(outputs, seed=1)}


def dense(inputs: int = 3, outputs: int = 2, **options: Any) -> nn.Dense:
    return nn.Dense(inputs, outputs, key=KEY, **options)


class Three(nn.Module):
    query: nn.Dense
    key: nn.Dense
    value: nn.Dense


def test_a_linear_layer_is_turned() -> None:
    given, model = linear(), dense()
    before = np.array(model.w)
    loaded = load_torch_names(given, model, LINEAR)
    np.testing.assert_array_equal(loaded.w, given["weight"].T)
    np.testing.assert_array_equal(loaded.b, given["bias"])
    np.testing.assert_array_equal(model.w, before)
    assert loaded.w.flags.c_contiguous


def test_a_square_layer_is_turned_too() -> None:
    given = linear(3, 3)
    np.testing.assert_array_equal(load_torch_names(given, dense(3, 3), LINEAR).w, given["weight"].T)


def test_what_is_unchanged_is_named() -> None:
    given = linear(3, 3)
    loaded = load_torch_names(given, dense(3, 3), LINEAR, unchanged=[r"^weight$"])
    np.testing.assert_array_equal(loaded.w, given["weight"])


def test_the_file_and_the_mapping_are_not_shared(tmp_path: Path) -> None:
    given = linear()
    checkpoint.save(tmp_path / "linear.safetensors", given)
    from_file = load_torch_names(tmp_path / "linear.safetensors", dense(), LINEAR)
    loaded = load_torch_names(given, dense(), LINEAR)
    given["bias"][:] = 7
    np.testing.assert_array_equal(loaded.b, from_file.b)
    assert not (loaded.b == 7).any()


def test_rules_are_applied_in_turn_and_a_function_serves_too() -> None:
    given = {f"net.{k}": v for k, v in linear().items()} | {"net.version": draw(1), "step": draw(1)}
    rules = [(r"^net\.", ""), (r"^version$", None), (r"^step$", None), *LINEAR]
    by_rules = load_torch_names(given, dense(), rules)
    names = {"net.weight": "w", "net.bias": "b"}
    by_function = load_torch_names(given, dense(), names.get)
    np.testing.assert_array_equal(by_rules.w, by_function.w)
    np.testing.assert_array_equal(by_rules.b, given["net.bias"])


def test_braces_cut_a_fused_map() -> None:
    model = Three(dense(3, 4), dense(3, 2), dense(3, 2))
    given = {"qkv.weight": draw(8, 3), "qkv.bias": draw(8, seed=1)}
    loaded = load_torch_names(given, model, [("qkv", "{query,key,value}"), *LINEAR])
    np.testing.assert_array_equal(loaded.query.w, given["qkv.weight"][:4].T)
    np.testing.assert_array_equal(loaded.key.w, given["qkv.weight"][4:6].T)
    np.testing.assert_array_equal(loaded.value.b, given["qkv.bias"][6:])


def test_embeddings_and_norms_keep_their_layout() -> None:
    given = {"0.weight": draw(5, 5), "1.weight": draw(5, seed=1), "1.bias": draw(5, seed=2)}
    model = nn.Sequential(nn.Embedding(5, 5, key=KEY), nn.LayerNorm(5))
    loaded = load_torch_names(given, model, [(r"^0\.weight", "0.w"), (r"^1\.weight", "1.scale")])
    np.testing.assert_array_equal(loaded[0].w, given["0.weight"])
    np.testing.assert_array_equal(loaded[1].scale, given["1.weight"])


CONVOLUTIONS: dict[str, Any] = {
    "Conv2d": (nn.Conv2D, (2, 7, 6, 4), {"stride": 2, "groups": 2}),
    "Conv1d": (nn.Conv1D, (2, 7, 4), {"dilation": 2}),
    "ConvTranspose2d": (nn.ConvTranspose2D, (2, 3, 5, 4), {"stride": 2}),
    "ConvTranspose1d": (nn.ConvTranspose1D, (2, 5, 4), {"groups": 2}),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_are_those_of_torch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    ours, shape, options = CONVOLUTIONS[kind]
    theirs = getattr(torch.nn, kind)(4, 6, 3, **options)
    model = load_torch_names(theirs.state_dict(), ours(4, 6, 3, key=KEY, padding=0, **options), LINEAR)
    x = draw(*shape)
    expected = theirs(torch.tensor(np.moveaxis(x, -1, 1))).detach().numpy()
    np.testing.assert_allclose(model(x), np.moveaxis(expected, 1, -1), rtol=1e-4, atol=1e-5)


def test_layers_of_a_repeat_are_named_one_by_one() -> None:
    def inner(key: Any) -> nn.Module:
        return nn.Repeat(lambda key: nn.Dense(3, 3, key=key), 2, key=key)

    model = nn.Sequential(nn.Repeat(inner, 3, key=KEY))
    given = {f"0.{i}.{j}.{k}": v + 10 * i + j for i in range(3) for j in range(2) for k, v in linear(3, 3).items()}
    loaded = load_torch_names(given, model, LINEAR)
    stacked = loaded.named_parameters()
    assert list(stacked) == ["0.layers.layers.w", "0.layers.layers.b"]
    assert stacked["0.layers.layers.w"].shape == (3, 2, 3, 3)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_array_equal(stacked["0.layers.layers.w"][i, j], given[f"0.{i}.{j}.weight"].T)
        np.testing.assert_array_equal(stacked["0.layers.layers.b"][i, j], given[f"0.{i}.{j}.bias"])
    assert not np.array_equal(model.named_parameters()["0.layers.layers.w"], stacked["0.layers.layers.w"])


@pytest.mark.parametrize("short", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("long", ["f32", "f64"])
def test_16_bit_floats_become_wide_when_asked(short: Any, long: str) -> None:
    given = {name: value.astype(short) for name, value in linear().items()}
    model = dense(dtype=long)
    with pytest.raises(ag.CheckpointError, match=rf"w saved (f16|bf16)\[3,2\], model {long}\[3,2\]") as caught:
        load_torch_names(given, model, LINEAR)
    assert "widen=True" in str(caught.value)
    loaded = load_torch_names(given, model, LINEAR, widen=True)
    assert loaded.w.dtype == model.w.dtype
    np.testing.assert_array_equal(loaded.w, given["weight"].T.astype(model.w.dtype))


@pytest.mark.parametrize(("saved", "model"), [("f32", "bf16"), ("f64", "f32"), ("f32", "f64"), ("bf16", "f16")])
def test_nothing_else_is_converted(saved: str, model: str) -> None:
    given = {name: np.asarray(ag.ops.convert(value, saved)) for name, value in linear().items()}
    with pytest.raises(ag.CheckpointError, match=rf"w saved {saved}\[3,2\], model {model}\[3,2\]"):
        load_torch_names(given, dense(dtype=model), LINEAR, widen=True)


def test_one_message_lists_all_that_does_not_fit() -> None:
    """case load-mismatch, for names of another program."""
    model = nn.Sequential(dense(), dense(2, 4), dense(4, 1))
    given = {
        "layers.0.weight": draw(2, 3),
        "layers.1.weight": draw(4, 2),
        "layers.1.bias": draw(5),
        "layers.2.weight": draw(1, 4),
        "layers.2.bias": draw(1),
        "layers.2.extra": draw(3, 1),
    }
    before = {name: np.array(value) for name, value in model.named_parameters().items()}
    with pytest.raises(ag.CheckpointError) as caught:
        load_torch_names(given, model, [(r"^layers\.", ""), *LINEAR])
    lines = str(caught.value).split("\n")
    assert lines[:4] == [
        "the weights in the mapping do not fit the model.",
        "  missing from the file (1): 0.b f32[2]",
        "  in the file, not in the model (1): 2.extra (from layers.2.extra) f32[3,1]",
        "  of another shape or type (1): 1.b saved f32[5], model f32[4]",
    ]
    for name, value in model.named_parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_kernel_is_shown_in_the_layout_of_the_model() -> None:
    with pytest.raises(ag.CheckpointError, match=re.escape("w saved f32[4,2], model f32[3,2]")):
        load_torch_names(linear(4, 2), dense(), LINEAR)


def test_a_fused_map_of_another_size_is_refused() -> None:
    model = Three(dense(), dense(), dense())
    given = {"qkv.weight": draw(5, 3), "qkv.bias": draw(6)}
    with pytest.raises(ag.CheckpointError, match=re.escape("key.w saved f32[3,5], model f32[3,2]")):
        load_torch_names(given, model, [("qkv", "{query,key,value}"), *LINEAR])
    given = {"qkv.weight": draw(6, 3), "qkv.bias": draw(6)}
    with pytest.raises(ag.CheckpointError, match=re.escape("other.w (from qkv.weight) f32[3,6]")):
        load_torch_names(given, model, [("qkv", "{query,key,value,other}"), *LINEAR])


def test_without_strict_the_model_keeps_what_is_missing() -> None:
    model = nn.Sequential(dense(), dense(2, 4))
    given = {f"0.{k}": v for k, v in linear().items()} | {"head.weight": draw(3, 3)}
    loaded = load_torch_names(given, model, LINEAR, strict=False)
    np.testing.assert_array_equal(loaded[0].w, given["0.weight"].T)
    assert loaded[1].w is model[1].w
    with pytest.raises(ag.CheckpointError, match=r"0\.b saved"):
        load_torch_names(given | {"0.bias": draw(3)}, model, LINEAR, strict=False)


def test_two_entries_for_one_place_are_refused() -> None:
    with pytest.raises(ag.CheckpointError, match=r"lead to 'w', and 'b.weight' is one of them"):
        load_torch_names({"a.weight": draw(2, 3), "b.weight": draw(2, 3)}, dense(), [(r"^[ab]\.", ""), *LINEAR])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ag.CheckpointError, match=r"cannot read .*none\.safetensors"):
        load_torch_names(tmp_path / "none.safetensors", dense(), LINEAR)


def test_running_statistics_are_state_that_is_loaded() -> None:
    model = nn.BatchNorm(3)
    given = {
        "weight": draw(3),
        "bias": draw(3, seed=1),
        "running_mean": draw(3, seed=2),
        "running_var": draw(3, seed=3),
    }
    given["num_batches_tracked"] = np.int64(4)
    state = sorted(nn.state_paths(model))
    assert len(state) == 2
    mean, variance = (next(name for name in state if part in name) for part in ("mean", "var"))
    names = [("weight", "scale"), ("running_mean", mean), ("running_var", variance), ("num_batches", None)]
    loaded = load_torch_names(given, model, names).named_parameters()
    np.testing.assert_array_equal(loaded[mean], given["running_mean"])
    np.testing.assert_array_equal(loaded[variance], given["running_var"])
