"""Attention of several heads against torch, its masks, positions and cache, and the feed-forward layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random, tree
from tests.nn.torch_reference import assert_same_as_torch, require_torch
from tests.support import assert_close, devices, run

KEY = random.key(0)
TORCH_NAMES = [
    (r"in_proj_(weight|bias)$", r"{query,key,value}.\1"),
    *((r"([qkv])_proj_weight$", r"\1_proj.weight"), (r"out_proj\.", "output.")),
    *((r"^q_proj", "query"), (r"^k_proj", "key"), (r"^v_proj", "value")),
    *((r"weight$", "w"), (r"bias$", "b")),
]
"""From ``torch.nn.MultiheadAttention``."""


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def single(*shape: int, seed: int = 0) -> np.ndarray:
    return draw(*shape, seed=seed).astype(np.float32)


def attention(features: int = 16, heads: int = 4, **options: Any) -> nn.MultiHeadAttention:
    layer = nn.MultiHeadAttention(features, heads, key=KEY, **options)
    biases = {
        n: single(*p.shape, seed=len(n)).astype(p.dtype) for n, p in layer.named_parameters().items() if n[-1] == "b"
    }
    return layer.with_parameters({**layer.named_parameters(), **biases})


PRESENT = np.array([[True, True, False, True, False], [False, True, True, True, True]])
ALLOWED = draw(3, 5, seed=3) > -0.5


def test_self_attention_is_that_of_torch() -> None:
    theirs = require_torch().nn.MultiheadAttention(8, 2, batch_first=True)
    assert_same_as_torch(
        attention(8, 2, dtype="f64"),
        TORCH_NAMES,
        theirs,
        lambda model, x: model(x),
        lambda module, x: module(x, x, x, need_weights=False)[0],
        draw(2, 5, 8),
    )


def test_masked_cross_attention_is_that_of_torch() -> None:
    torch = require_torch()
    theirs = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)

    def reference(module: Any, x: Any, context: Any) -> Any:
        masks = {"key_padding_mask": torch.tensor(~PRESENT), "attn_mask": torch.tensor(~ALLOWED)}
        return module(x, context, context, need_weights=False, **masks)[0]

    assert_same_as_torch(
        attention(8, 2, context_features=6, dtype="f64"),
        [(r"in_proj_bias$", "{query,key,value}.b"), *TORCH_NAMES],
        theirs,
        lambda model, x, context: model(x, context, padding=PRESENT, mask=ALLOWED),
        reference,
        draw(2, 3, 8),
        draw(2, 5, 6, seed=1),
    )


@pytest.mark.parametrize("options", [{"causal": True}, {"key_value_heads": 2, "head_dim": 6, "bias": False}], ids=str)
def test_grouped_heads_are_those_of_torch(options: dict[str, Any]) -> None:
    torch = require_torch()
    layer, x = attention(16, 4, dtype="f64", **options), draw(2, 5, 16)
    found = layer(x)

    def heads(name: str, count: int) -> Any:
        projected = getattr(layer, name)(x).reshape(2, 5, count, -1)
        return torch.tensor(projected).transpose(1, 2)

    groups = options.get("key_value_heads", 4)
    query, key, value = heads("query", 4), heads("key", groups), heads("value", groups)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=options.get("causal", False), enable_gqa=True
    )
    expected = layer.output(mixed.transpose(1, 2).reshape(2, 5, -1).numpy())
    assert_close(found, expected, 1e-13, str(options))


def by_hand(layer: nn.MultiHeadAttention, x: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Attention within one sequence [L, features], one query and one head after the other."""
    rows, shared = np.zeros((len(x), layer.heads, layer.head_dim)), layer.heads // layer.key_value_heads
    query, key, value = (m(x).reshape(len(x), -1, layer.head_dim) for m in (layer.query, layer.key, layer.value))
    for i, head in np.ndindex(len(x), layer.heads):
        scores = key[:, head // shared] @ query[i, head] / np.sqrt(layer.head_dim)
        weights = np.where(allowed[i], np.exp(scores), 0)
        if weights.any():
            rows[i, head] = weights / weights.sum() @ value[:, head // shared]
    return layer.output(rows.reshape(len(x), -1))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("size", [None, 2])
def test_is_a_mean_weighted_by_the_scores(device: str, size: int | None) -> None:
    layer, x = attention(causal=True, key_value_heads=2, block_size=size, dtype="f64"), draw(5, 16)
    mask = draw(5, 5, seed=2) > -0.5
    found = ag.compile(lambda layer, x: layer(x, mask=mask), device=device)(layer, x)
    assert_close(np.asarray(found), by_hand(layer, x, mask & np.tri(5, dtype=bool)), 1e-13, device)


def test_masks_of_both_kinds_and_padding_join() -> None:
    layer, x, context = attention(), single(2, 3, 16), single(2, 5, 16, seed=1)
    both = layer(x, context, mask=ALLOWED & PRESENT[:, None, None])
    as_float = np.where(ALLOWED, 0, -np.inf).astype(np.float32)
    np.testing.assert_allclose(layer(x, context, mask=ALLOWED, padding=PRESENT), both, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(layer(x, context, mask=as_float, padding=PRESENT), both, rtol=1e-6, atol=1e-6)


def test_a_query_without_keys_gives_the_bias_and_no_gradient() -> None:
    layer, x, context = attention(), single(2, 3, 16), single(2, 5, 16, seed=1)
    nobody = np.zeros((2, 5), bool)
    np.testing.assert_array_equal(layer(x, context, padding=nobody), np.broadcast_to(layer.output.b, (2, 3, 16)))
    gradient = ag.grad(lambda context: ops.sum(layer(x, context, padding=nobody)))(context)
    np.testing.assert_array_equal(gradient, 0)


# Rotary positions


def test_rotary_is_that_of_hugging_face() -> None:
    """The formula of ``apply_rotary_pos_emb`` of transformers' Llama: ``x * cos + rotate_half(x) * sin``."""
    x, positions = draw(2, 3, 5, 8), np.array([0, 1, 2, 7, 1000])
    frequencies = 1 / 10000.0 ** (np.arange(0, 8, 2) / 8)
    angles = np.concatenate([positions[:, None] * frequencies] * 2, -1)
    half = np.concatenate((-x[..., 4:], x[..., :4]), -1)
    assert_close(nn.rotary(x, positions), x * np.cos(angles) + half * np.sin(angles), 1e-14, "halves")


def test_interleaved_rotary_is_that_of_meta() -> None:
    """The formula of ``apply_rotary_emb`` of Meta's Llama: pairs as complex numbers, turned by ``exp(i angle)``."""
    x, positions = draw(2, 3, 5, 8), np.array([0, 1, 2, 7, 1000])
    turns = np.exp(1j * positions[:, None] / 500.0 ** (np.arange(0, 8, 2) / 8))
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * turns
    expected = np.stack((turned.real, turned.imag), -1).reshape(x.shape)
    assert_close(nn.rotary(x, positions, base=500.0, interleaved=True), expected, 1e-14, "interleaved")


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_products_depend_on_distances(interleaved: bool) -> None:
    query, key = draw(1, 8), draw(1, 8, seed=1)

    def product(i: int, j: int) -> float:
        turned = [nn.rotary(x, np.array([p]), interleaved=interleaved)[0] for x, p in ((query, i), (key, j))]
        return float(turned[0] @ turned[1])

    np.testing.assert_allclose(product(5, 2), product(905, 902), rtol=1e-10)
    assert abs(product(5, 2) - product(5, 3)) > 1e-3


def test_rotary_of_bf16_is_rounded_once() -> None:
    x, positions = ops.convert(single(4, 6), "bf16"), np.array([0, 3, 200, 5])
    found = nn.rotary(x, positions)
    assert str(found.dtype) == "bfloat16"
    np.testing.assert_array_equal(found, ops.convert(nn.rotary(ops.convert(x, "f32"), positions), "bf16"))


def test_rotary_has_its_gradient() -> None:
    x, positions = draw(3, 4, seed=1), np.array([0, 2, 9])
    for interleaved in (False, True):
        ag.check_gradient(lambda x, pairs=interleaved: ops.sum(nn.rotary(x, positions, interleaved=pairs) ** 3), x)


# The cache


CACHED: list[dict[str, Any]] = [{}, {"rope": 10000.0, "key_value_heads": 2}, {"rope": 100.0, "block_size": 2}]


@pytest.mark.parametrize("options", CACHED, ids=str)
@pytest.mark.parametrize("device", devices())
def test_steps_give_what_one_call_gives(options: dict[str, Any], device: str) -> None:
    layer, x = attention(causal=True, **options), single(2, 7, 16)
    whole = layer(x)
    step = ag.compile(lambda layer, x, cache: layer.step(x, cache), device=device)
    for sizes in ([1] * 7, [4, 1, 2]):
        cache, outputs, start = layer.init_cache(2, 9), [], 0
        for size in sizes:
            y, cache = step(layer, x[:, start : start + size], cache)
            outputs.append(np.asarray(y))
            start += size
        assert int(cache.length) == 7
        assert_close(np.concatenate(outputs, 1), np.asarray(whole, np.float64), 1e-6, f"{sizes} on {device}")


def test_the_cache_is_a_value() -> None:
    layer, x = attention(causal=True), single(2, 3, 16)
    empty = layer.init_cache(2, 3)
    _, full = layer.step(x, empty)
    assert not np.asarray(empty.keys).any()
    assert tree.structure(empty) == tree.structure(full)
    assert [str(ag.ir.types.type_of(leaf)) for leaf in tree.leaves(full)] == ["f32[2,4,3,4]", "f32[2,4,3,4]", "i32[]"]


def test_a_full_cache_is_an_error_and_traced_is_nan() -> None:
    layer, x = attention(causal=True), single(2, 3, 16)
    _, full = layer.step(x, layer.init_cache(2, 3))
    with pytest.raises(ag.ShapeError, match="the cache of keys and values has 3 places, and place 3 was asked for"):
        layer.step(x[:, :1], full)
    with pytest.raises(ag.ShapeError, match=r"holds f32\[2,4,3,4\] and cannot take f32\[2,4,5,4\]"):
        layer.step(single(2, 5, 16), layer.init_cache(2, 3))
    with pytest.raises(ag.ShapeError, match=r"holds f32\[3,4,9,4\] and cannot take f32\[2,4,3,4\]"):
        layer.step(x, layer.init_cache(3, 9))
    program = ag.capture(lambda x, cache: layer.step(x, cache)[0], x[:, :1], full)
    for device in devices():
        (y,) = run(program, [x[:, :1], *tree.leaves(full)], device)
        assert np.isnan(y).all()


def test_padding_of_the_cache_is_left_out() -> None:
    layer, x = attention(causal=True), single(2, 4, 16)
    present = np.ones((2, 6), bool)
    present[:, 0] = False
    cache = layer.init_cache(2, 6)
    found = []
    for t in range(4):
        y, cache = layer.step(x[:, t : t + 1], cache, padding=present)
        found.append(y)
    without = layer(x, padding=present[:, :4])
    np.testing.assert_allclose(np.concatenate(found, 1), without, rtol=1e-5, atol=1e-6)


def test_a_narrow_cache_serves_a_wide_layer() -> None:
    layer, x = attention(causal=True), single(2, 4, 16)
    y, cache = layer.step(x, layer.init_cache(2, 4, "bf16"))
    assert str(cache.keys.dtype) == "bfloat16"
    assert y.dtype == np.float32
    assert_close(y, np.asarray(layer(x), np.float64), 0.02, "bf16 cache")


def test_only_a_causal_layer_steps() -> None:
    layer = attention()
    with pytest.raises(ag.ShapeError, match="only a causal layer goes step by step"):
        layer.step(single(2, 1, 16), layer.init_cache(2, 3))


# Dropout, element types and errors


def test_dropout_acts_in_training_alone() -> None:
    layer, x = attention(dropout=0.5), single(2, 5, 16)
    plain = attention()(x)
    np.testing.assert_array_equal(layer(x), plain)
    (first, _), (again, _), (other, _) = (nn.training_call(layer, x, key=random.key(i)) for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, plain)
    with pytest.raises(ag.TraceError, match="needs a random key in training"):
        nn.training_call(layer, x)


@pytest.mark.parametrize("mask", [None, ALLOWED[:, :3], np.where(ALLOWED[:, :3], 0.5, -np.inf).astype(np.float32)])
def test_a_dropout_that_drops_nothing_changes_nothing(mask: Any) -> None:
    options: dict[str, Any] = {"causal": True, "key_value_heads": 2}
    plain, dropping, x = attention(**options), attention(dropout=1e-12, **options), single(2, 3, 16)
    found, _ = nn.training_call(dropping, x, mask=mask, padding=PRESENT[:, 1:4], key=KEY)
    np.testing.assert_allclose(found, plain(x, mask=mask, padding=PRESENT[:, 1:4]), rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean() -> None:
    layer, x = attention(dropout=0.5, bias=False), single(1, 3, 16)
    call = ag.compile(lambda key: nn.training_call(layer, x, key=key)[0])
    mean = np.mean([np.asarray(call(random.key(i))) for i in range(400)], axis=0)
    assert_close(mean, np.asarray(layer(x), np.float64), 0.15, "mean of 400 draws")


def test_bf16() -> None:
    layer, x = attention(causal=True, rope=10000.0, dtype="bf16"), single(2, 5, 16)
    y = layer(ops.convert(x, "bf16"))
    assert str(y.dtype) == "bfloat16"
    wide = attention(causal=True, rope=10000.0, dtype="f64")
    wide = wide.with_parameters({n: p.astype(np.float64) for n, p in layer.named_parameters().items()})
    assert_close(y, wide(ops.convert(ops.convert(x, "bf16"), "f64")), 0.02, "bf16")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ag.ShapeError, match="10 features do not divide into 4 heads"):
        attention(10, 4)
    with pytest.raises(ag.ShapeError, match="found heads=4 and key_value_heads=3"):
        attention(key_value_heads=3)
    with pytest.raises(ag.ShapeError, match="rope turns pairs of features, and a head has 3"):
        attention(12, 4, rope=10000.0)
    with pytest.raises(ValueError, match="no probabilities can be dropped"):
        attention(dropout=0.1, block_size=4)
    with pytest.raises(ag.ShapeError, match=r"takes an input \(..., length, features\), found f32\[16\]"):
        attention()(single(16))
    with pytest.raises(ag.ShapeError, match=r"Dense\(16 -> 16\).*f32\[2,3,15\].*\n  at layer query"):
        attention()(single(2, 3, 15))
    with pytest.raises(ag.ShapeError, match="attends within one sequence alone"):
        attention(causal=True)(single(2, 3, 16), single(2, 5, 16))
    with pytest.raises(ag.DTypeError, match=r"padding is bool\[..., keys\].*found f32\[2,3\]"):
        attention()(single(2, 3, 16), padding=single(2, 3))
    with pytest.raises(ag.ShapeError, match=r"mask must broadcast"):
        attention()(single(2, 3, 16), mask=np.ones((3, 4), bool))
    with pytest.raises(ag.ShapeError, match=r"even number D .* found f32\[2,3\] and i32\[2\]"):
        nn.rotary(single(2, 3), np.arange(2, dtype=np.int32))
    with pytest.raises(ag.DTypeError, match=r"rotary is for float tensors, found i32\[2,4\]"):
        nn.rotary(np.ones((2, 4), np.int32), np.arange(2, dtype=np.int32))


# Positions that are added


def test_sinusoidal_positions_are_those_of_the_paper() -> None:
    table = np.array([[f(p / 10000 ** (2 * i / 6)) for i in range(3) for f in (np.sin, np.cos)] for p in range(4)])
    np.testing.assert_allclose(nn.sinusoidal(np.arange(4), 6, dtype="f64"), table, rtol=1e-14, atol=1e-16)
    x = single(2, 3, 6)
    np.testing.assert_allclose(nn.SinusoidalPositions()(x, 1), x + table[1:], rtol=1e-6, atol=1e-6)
    with pytest.raises(ag.ShapeError, match="an even number of features is needed, found 5"):
        nn.sinusoidal(np.arange(4), 5)


def test_learned_positions_are_read_from_their_table() -> None:
    layer, x = nn.LearnedPositions(5, 6, key=KEY), single(2, 3, 6)
    np.testing.assert_array_equal(layer(x), x + layer.table[:3])
    np.testing.assert_array_equal(layer(x, 2), x + layer.table[2:])
    with pytest.raises(ag.ShapeError, match="the table of positions has 5 places, and place 5 was asked for"):
        layer(x, 3)
    with pytest.raises(ag.ShapeError, match=r"at most 5 tokens of 6 features, found f32\[2,6,6\]"):
        layer(single(2, 6, 6))
    program = ag.capture(layer, x, np.int32(3))
    for offset in (2, 3):
        (y,) = run(program, [x, np.int32(offset)], "cpu")
        np.testing.assert_array_equal(y, layer(x, 2) if offset == 2 else np.full_like(x, np.nan))


# Feed-forward layers


def test_mlp_is_that_of_torch() -> None:
    torch = require_torch()
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.GELU(), torch.nn.Linear(7, 4))
    names = [(r"^0\.", "up."), (r"^2\.", "down."), (r"weight$", "w"), (r"bias$", "b")]
    ours = nn.MLP(4, 7, key=KEY, dtype="f64")
    assert_same_as_torch(ours, names, theirs, lambda m, x: m(x), lambda m, x: m(x), draw(3, 4))


def test_swiglu_is_that_of_torch() -> None:
    torch = require_torch()
    maps = {"gate": torch.nn.Linear(4, 7, bias=False), "up": torch.nn.Linear(4, 7, bias=False)}
    theirs = torch.nn.ModuleDict({**maps, "down": torch.nn.Linear(7, 4, bias=False)})
    assert_same_as_torch(
        nn.SwiGLU(4, 7, key=KEY, dtype="f64"),
        [(r"weight$", "w")],
        theirs,
        lambda m, x: m(x),
        lambda m, x: m["down"](torch.nn.functional.silu(m["gate"](x)) * m["up"](x)),
        draw(3, 4),
    )


def test_the_block_has_its_norms_first_or_last() -> None:
    x = single(2, 3, 8)
    for first in (True, False):
        block = nn.TransformerBlock(8, 2, key=KEY, norm_first=first)
        if first:
            half = x + block.attention(block.attention_norm(x))
            expected = half + block.mlp(block.mlp_norm(half))
        else:
            half = block.attention_norm(x + block.attention(x))
            expected = block.mlp_norm(half + block.mlp(half))
        np.testing.assert_allclose(block(x), expected, rtol=1e-6, atol=1e-6)
