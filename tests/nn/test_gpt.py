"""GPT against a port of nanoGPT to torch, its start, its cache, and what it weighs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, optim, random, tree
from antegrad.nn.models import GPT, GPTConfig
from tests.nn.torch_reference import assert_same_as_torch, require_torch
from tests.support import assert_close, devices

KEY = random.key(0)
TINY = GPTConfig(vocabulary=17, context=8, layers=2, heads=2, features=8)
NANO_NAMES = [
    *((r"^wte", "embedding"), (r"^wpe\.weight$", "positions.table"), (r"^h\.", "blocks."), (r"^ln_f", "norm")),
    *((r"ln_1", "attention_norm"), (r"ln_2", "mlp_norm"), (r"attn\.c_attn", "attention.{query,key,value}")),
    *((r"attn\.c_proj", "attention.output"), (r"mlp\.c_fc", "mlp.up"), (r"mlp\.c_proj", "mlp.down")),
    *((r"norm\.weight$", "norm.scale"), (r"weight$", "w"), (r"(?<!norm\.)bias$", "b")),
]
"""From nanoGPT, and from Hugging Face's GPT-2 without its prefix ``transformer.``."""


def tokens(*shape: int, vocabulary: int = 17, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, shape).astype(np.int32)


def nano_gpt(config: GPTConfig) -> tuple[Any, Any]:
    """The modules of nanoGPT under its names, and the function from them and tokens to logits."""
    torch = require_torch()
    c, (dense, norm) = config.features, (torch.nn.Linear, torch.nn.LayerNorm)

    def block() -> Any:
        attn = torch.nn.ModuleDict({"c_attn": dense(c, 3 * c, config.bias), "c_proj": dense(c, c, config.bias)})
        mlp = torch.nn.ModuleDict({"c_fc": dense(c, 4 * c, config.bias), "c_proj": dense(4 * c, c, config.bias)})
        norms = {name: norm(c, bias=config.bias) for name in ("ln_1", "ln_2")}
        return torch.nn.ModuleDict({**norms, "attn": attn, "mlp": mlp})

    embeddings = {
        "wte": torch.nn.Embedding(config.vocabulary, c),
        "wpe": torch.nn.Embedding(config.context, c),
    }
    blocks = torch.nn.ModuleList([block() for _ in range(config.layers)])
    module = torch.nn.ModuleDict({**embeddings, "h": blocks, "ln_f": norm(c, bias=config.bias)})
    gelu = torch.nn.GELU(approximate="tanh" if config.tanh_gelu else "none")

    def logits(module: Any, indices: Any) -> Any:
        batch, length = indices.shape
        x = module["wte"](indices) + module["wpe"](torch.arange(length))
        for each in module["h"]:
            parts = each["attn"]["c_attn"](each["ln_1"](x)).split(c, dim=2)
            q, k, v = (p.view(batch, length, config.heads, -1).transpose(1, 2) for p in parts)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + each["attn"]["c_proj"](y.transpose(1, 2).reshape(batch, length, c))
            x = x + each["mlp"]["c_proj"](gelu(each["mlp"]["c_fc"](each["ln_2"](x))))
        return torch.nn.functional.linear(module["ln_f"](x), module["wte"].weight)

    return module, logits


@pytest.mark.parametrize(
    "changes", [{}, {"rolled": True, "tanh_gelu": True, "bias": False}], ids=["unrolled", "rolled"]
)
def test_is_nano_gpt(changes: dict[str, Any]) -> None:
    config = replace(TINY, **changes)
    module, logits = nano_gpt(config)
    ours = GPT(config, key=KEY, dtype="f64")
    assert_same_as_torch(ours, NANO_NAMES, module, lambda m, x: m(x), logits, tokens(2, 6))


def test_gpt2_of_hugging_face_loads() -> None:
    transformers, torch = pytest.importorskip("transformers"), require_torch()
    sizes = {"vocab_size": 17, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    names = [(r"^transformer\.", ""), (r"^lm_head", None), *NANO_NAMES]
    ours = GPT(replace(TINY, tanh_gelu=True), key=KEY)
    ours = ag.checkpoint.load_torch_names(theirs.state_dict(), ours, names, unchanged=[r"\.c_(attn|proj|fc)\.weight$"])
    x = tokens(2, 6)
    expected = theirs(torch.tensor(x).long()).logits.detach().numpy()
    assert_close(ours(x), expected.astype(np.float64), 1e-5, "logits")


def test_gpt2_small_has_124_million_parameters() -> None:
    program = ag.capture(lambda key: GPT(GPTConfig(), key=key), ag.spec((2,), "u32"))
    assert sum(type.size for type in program.output_types) == 124_439_808
    rolled = ag.capture(lambda key: GPT(GPTConfig(rolled=True), key=key), ag.spec((2,), "u32"))
    assert sum(type.size for type in rolled.output_types) == 124_439_808


def test_weights_start_as_in_gpt2() -> None:
    model = GPT(replace(TINY, layers=8, features=64, vocabulary=500), key=KEY)
    for name, value in model.named_parameters().items():
        if name.endswith((".b", ".bias")):
            assert not value.any()
        elif name.endswith("scale"):
            assert (value == 1).all()
        else:
            expected = 0.02 / 4 if "output.w" in name or "down.w" in name else 0.02
            assert math.isclose(float(np.std(value)), expected, rel_tol=0.1), name


def test_the_loss_starts_at_that_of_equal_logits() -> None:
    model = GPT(replace(TINY, vocabulary=500, features=32), key=KEY)
    logits = model(tokens(4, 8, vocabulary=500))
    loss = losses.cross_entropy(logits, tokens(4, 8, vocabulary=500, seed=1))
    assert abs(float(loss) - math.log(500)) < 0.05


def test_output_and_input_share_one_array() -> None:
    model = GPT(TINY, key=KEY)
    assert [name for name, p in model.named_parameters().items() if 17 in p.shape] == ["embedding.w"]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_rolled_blocks_are_the_same_model(dropout: float) -> None:
    plain, rolled = (GPT(replace(TINY, rolled=way, dropout=dropout), key=KEY) for way in (False, True))
    x = tokens(2, 8)
    assert_close(rolled(x), np.asarray(plain(x), np.float64), 1e-6, "logits")
    assert rolled.named_parameters()["blocks.layers.mlp.up.w"].shape == (2, 8, 32)
    np.testing.assert_array_equal(rolled.blocks[1].mlp.up.w, plain.blocks[1].mlp.up.w)


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("device", devices())
def test_steps_give_what_one_call_gives(rolled: bool, device: str) -> None:
    model, x = GPT(replace(TINY, rolled=rolled), key=KEY), tokens(2, 8)
    whole, cache, outputs = model(x), model.init_cache(2), []
    step = ag.compile(lambda model, x, cache: model.step(x, cache), device=device)
    for start, stop in [(0, 5), (5, 6), (6, 7), (7, 8)]:
        logits, cache = step(model, x[:, start:stop], cache)
        outputs.append(np.asarray(logits))
    assert_close(np.concatenate(outputs, 1), np.asarray(whole, np.float64), 1e-6, "logits")
    logits, _ = step(model, x[:, :1], cache)
    assert np.isnan(np.asarray(logits)).all()  # the cache is full


@pytest.mark.parametrize("rolled", [False, True])
def test_layers_know_their_paths_in_a_step(rolled: bool) -> None:
    model = GPT(replace(TINY, rolled=rolled), key=KEY)
    program = ag.capture(lambda x, cache: model.step(x, cache), tokens(2, 1), model.init_cache(2))
    inner = [p for equation in program.equations for p in equation.programs]
    found = {equation.source.layer for p in (program, *inner) for equation in p.equations}
    expected = "blocks.layers.attention.query" if rolled else "blocks.1.attention.query"
    assert expected in found


@pytest.mark.parametrize("rolled", [False, True])
def test_dropout_acts_in_training_alone(rolled: bool) -> None:
    model, x = GPT(replace(TINY, dropout=0.5, rolled=rolled), key=KEY), tokens(2, 8)
    (first, same), (again, _) = (nn.training_call(model, x, key=random.key(1)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, model(x))
    assert tree.structure(same) == tree.structure(model)


def test_learns_to_count() -> None:
    model = GPT(replace(TINY, features=32, rolled=True), key=KEY)
    row = (tokens(32, 1) + np.arange(9, dtype=np.int32)) % 17
    batch, target = row[:, :-1], row[:, 1:]
    step = ag.train_step(model, losses.cross_entropy, optim.adam(1e-2), batch, target)
    run, arrays, loss = ag.compile(step.step), list(step.init().arrays), np.inf
    for _ in range(40):
        loss, *arrays = run(*arrays, batch, target)
    assert float(loss) < 0.1


def test_bf16() -> None:
    model = GPT(TINY, key=KEY, dtype="bf16")
    logits = model(tokens(2, 8))
    assert str(logits.dtype) == "bfloat16"
    steps, cache = model.step(tokens(2, 8), model.init_cache(2))
    assert str(cache[0].keys.dtype) == "bfloat16"
    np.testing.assert_array_equal(steps, logits)


def test_what_does_not_fit_is_refused() -> None:
    model = GPT(TINY, key=KEY)
    with pytest.raises(ag.ShapeError, match=r"tokens \(..., L\) with L up to its context 8, found i32\[2,9\]"):
        model(tokens(2, 9))
    with pytest.raises(ag.ShapeError, match="between 1 and the context 8, found 9"):
        model.init_cache(2, 9)
    with pytest.raises(ag.ShapeError, match="has 8 places, and place 8 was asked for"):
        model.step(tokens(2, 1), model.step(tokens(2, 8), model.init_cache(2))[1])
    with pytest.raises(ValueError, match="shorter"):
        model.step(tokens(2, 1), model.init_cache(2)[:1])
    with pytest.raises(ag.DTypeError, match=r"takes integers, found f32\[2,3\]"):
        model(np.ones((2, 3), np.float32))
