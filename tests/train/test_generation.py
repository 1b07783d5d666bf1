"""Generated text: the cache against whole forward passes, and the sampler against its probabilities."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, ops, optim, random, train, tree
from antegrad.train.generation import Sampler

VOCABULARY, CONTEXT = 13, 8


@cache
def gpt() -> nn.Module:
    """Its weights are so large that what comes next depends on all that came before."""
    config = nn.models.GPTConfig(vocabulary=VOCABULARY, context=CONTEXT, layers=2, heads=2, features=8)
    return tree.map(lambda leaf: np.asarray(leaf) * np.float32(12), nn.models.GPT(config, key=random.key(0)))


@cache
def trainer(device: str = "host", context: int = CONTEXT, precision: Any = "f32") -> train.AutoregressiveTrainer:
    settings: dict[str, Any] = {"context": context, "batch_size": 2, "device": device, "precision": precision}
    return train.AutoregressiveTrainer(gpt(), optim.adamw(0.01), **settings)


def logits_after(window: list[int]) -> np.ndarray:
    return np.asarray(gpt()(np.array([window], np.int32)))[0, -1]


def greedy(prompt: list[int], count: int, context: int = CONTEXT) -> list[int]:
    """The most likely tokens, by a whole forward pass each; a full window goes on with its last half."""
    text = list(prompt)
    window = text[-context:]
    for _ in range(count):
        text.append(int(logits_after(window).argmax()))
        window = [*window, text[-1]] if len(window) < context else text[-max(1, context // 2) :]
    return text[len(prompt) :]


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.mark.parametrize("length", [1, 2, 4, 7, 8, 9, 12])
def test_greedy_is_the_most_likely_token_of_a_whole_forward_pass(length: int) -> None:
    """Within the context, at its limit, across it and far beyond; prompts that are longer than it."""
    for count in (1, CONTEXT - 3, 30):
        found = trainer().generate(PROMPT[:length], count, temperature=0)
        assert found.dtype == np.int32
        assert found.tolist() == greedy(PROMPT[:length], count), (length, count)
    assert len(set(greedy(PROMPT[:length], 30))) > 3, "the text says the same all the time"


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_smallest_contexts(context: int) -> None:
    found = trainer(context=context).generate(PROMPT[:2], 9, temperature=0)
    assert found.tolist() == greedy(PROMPT[:2], 9, context)


def test_xla_generates_the_same_text() -> None:
    on_host = trainer().generate(PROMPT[:3], 20, seed=7)
    assert trainer("cpu").generate(PROMPT[:3], 20, seed=7).tolist() == on_host.tolist()


def test_the_most_likely_token_in_other_words() -> None:
    expected = greedy(PROMPT[:3], 20)
    others: list[dict[str, Any]] = [
        {"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-3}, {"temperature": 1e-30}, {"temperature": 1e-300},
        {"temperature": 0.0, "top_k": 3}, {"top_k": 1, "top_p": 0.5, "temperature": 2.0},
    ]  # fmt: skip
    for settings in others:
        assert trainer().generate(PROMPT[:3], 20, **settings).tolist() == expected, settings


def test_a_seed_gives_one_text() -> None:
    texts = [trainer().generate(PROMPT[:3], 20, temperature=2.0, seed=seed).tolist() for seed in (0, 1, 0, 2)]
    assert texts[0] == texts[2]
    assert len({tuple(text) for text in texts}) == 3


def test_what_changes_nothing() -> None:
    plain = trainer().generate(PROMPT[:3], 20, temperature=2.0).tolist()
    for settings in ({"top_k": VOCABULARY}, {"top_k": 10**6}, {"top_p": 1.0}, {"top_k": 99, "top_p": 1}):
        assert trainer().generate(PROMPT[:3], 20, temperature=2.0, **settings).tolist() == plain, settings
    for prompt in (np.array(PROMPT[:3], np.uint16), np.array([PROMPT[:3]]), tuple(PROMPT[:3])):
        assert trainer().generate(prompt, 20, temperature=2.0).tolist() == plain
    assert trainer().generate(np.int64(3), 5, temperature=0).tolist() == greedy([3], 5)


def test_bf16() -> None:
    """The same program by the pass: it may choose otherwise where two tokens are nearly as likely, as a rule not."""
    found = trainer(precision="bf16").generate(PROMPT[:3], 5, temperature=0).tolist()
    window = PROMPT[:3]
    for token in found:
        logits = logits_after(window)
        assert logits[token] >= logits.max() - 0.05 * np.abs(logits).max()
        window = [*window, token]


class Table(nn.Module):
    """Scores of the next token by the last one, with a cache of nothing."""

    scores: Any

    def __call__(self, tokens: Any) -> Any:
        return self.scores[tokens]

    def init_cache(self, batch: int, capacity: int) -> Any:
        return ops.zeros((batch,), "i32")

    def step(self, tokens: Any, cache: Any) -> tuple[Any, Any]:
        return self.scores[tokens], cache + tokens.shape[1]


DRAWN = 4000


def probabilities(scores: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """What each token should have: of the softmax, the most likely ones that are kept."""
    chances = np.exp(scores.astype(np.float64) / temperature)
    chances /= chances.sum()
    order = np.argsort(-chances)
    kept = order[:top_k]
    if top_p is not None:
        of_kept = chances[kept] / chances[kept].sum()
        kept = kept[: int(np.searchsorted(np.cumsum(of_kept), top_p)) + 1]
    result = np.zeros_like(chances)
    result[kept] = chances[kept] / chances[kept].sum()
    return result


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0.5, None, None), (3.0, None, None), (1.0, 4, None), (1.0, None, 0.7), (2.0, 6, 0.8)],
)
def test_tokens_come_as_often_as_they_should(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Chi-square of 4,000 tokens, each drawn with the same probabilities; what is left out never comes."""
    scores = np.array([2.0, 1.5, -0.3, 0.9, 0.0, -2.0, 1.1, 0.4], np.float32)
    logits = np.broadcast_to(scores, (DRAWN, 8))
    found = np.asarray(Sampler(temperature, top_k, top_p)(np.asarray(random.key(3)), logits))
    expected = DRAWN * probabilities(scores, temperature, top_k, top_p)
    counts = np.bincount(found, minlength=8)
    there = expected > 0
    assert not counts[~there].any()
    assert there.sum() == {None: 8, 4: 4, 6: 6}[top_k] or top_p is not None
    square = ((counts - expected)[there] ** 2 / expected[there]).sum()
    assert square < {7: 24.3, 3: 16.3, 4: 18.5, 2: 13.8}[there.sum() - 1]  # p = 0.001


def test_each_token_depends_on_the_last() -> None:
    """A chain whose tokens follow one another: no draw is used twice, none is left out."""
    scores = np.full((4, 4), -100, np.float32)
    for last in range(4):
        scores[last, [(last + 1) % 4, (last + 2) % 4]] = 0
    made = train.AutoregressiveTrainer(Table(scores), optim.sgd(0.1), context=CONTEXT, batch_size=1, device="cpu")
    found = np.array([0, *made.generate([0], DRAWN, seed=1)])
    steps = (np.diff(found) % 4) - 1
    assert set(steps) == {0, 1}
    assert abs(steps.mean() - 0.5) < 3.3 * 0.5 / np.sqrt(DRAWN)
    pairs = np.bincount(2 * steps[:-1] + steps[1:], minlength=4)
    assert ((pairs - DRAWN / 4) ** 2 / (DRAWN / 4)).sum() < 16.3


def test_ties_with_the_last_that_is_kept_stay() -> None:
    logits = np.array([[1.0, 3.0, 1.0, 0.0]], np.float32)
    assert np.isfinite(Sampler(top_k=2).kept(logits)).tolist() == [[True, True, True, False]]
    assert np.isfinite(Sampler(top_p=0.8).kept(logits)).tolist() == [[True, True, True, False]]


def test_it_generates_before_and_after_training_with_the_averaged_weights() -> None:
    """A text that counts up teaches to count up; before that, the weights are those of the start."""
    made = train.AutoregressiveTrainer(
        Table(np.zeros((5, 5), np.float32)), optim.sgd(50.0), context=4, batch_size=8, device="cpu", ema=0.5
    )
    assert made.generate([3], 4, temperature=0).tolist() == [0] * 4
    made.fit(np.arange(200) % 5, 10, verbose=False)
    assert made.generate([3], 7, temperature=0).tolist() == [4, 0, 1, 2, 3, 4, 0]
    assert not np.array_equal(made.model.scores, made.state["param"]["scores"])


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "temperature": (lambda t: t.generate([1], 2, temperature=-1.0), ag.SettingError, "temperature .*found -1.0"),
    "nan": (lambda t: t.generate([1], 2, temperature=float("nan")), ag.SettingError, "temperature .*found nan"),
    "infinite": (lambda t: t.generate([1], 2, temperature=float("inf")), ag.SettingError, "temperature .*found inf"),
    "top_k": (lambda t: t.generate([1], 2, top_k=0), ag.SettingError, "top_k .*found 0"),
    "top_p": (lambda t: t.generate([1], 2, top_p=0.0), ag.SettingError, r"top_p .*\(0, 1\], found 0.0"),
    "more": (lambda t: t.generate([1], 2, top_p=1.5), ag.SettingError, "top_p .*found 1.5"),
    "seed": (lambda t: t.generate([1], 2, seed=-1), ag.SettingError, "seed .*found -1"),
    "none": (lambda t: t.generate([1], 0), ag.ShapeError, "at least one new token, found 1 and 0"),
    "part": (lambda t: t.generate([1], 2.5), ag.SettingError, "tokens .*found 2.5"),
    "empty": (lambda t: t.generate([], 2), ag.ShapeError, "a prompt and at least one new token, found 0 and 2"),
    "batch": (
        lambda t: t.generate([[1, 2], [3, 4]], 2), ag.ShapeError, r"one prompt, .*found i64\[2,2\]: call it for",
    ),
    "ragged": (lambda t: t.generate([[1, 2], [3]], 2), ag.DTypeError, "prompt, .*: rows of different lengths"),
    "float": (lambda t: t.generate([1.0], 2), ag.DTypeError, "prompt: integers .*found f64"),
    "text": (lambda t: t.generate("to be", 2), ag.DTypeError, "prompt, which must be tokens: no element"),
    "unknown": (
        lambda t: t.generate([1, 13], 2), losses.LabelError, r"prompt\[1\] is 13, and the model has a vocabulary of 13",
    ),
    "negative": (lambda t: t.generate([-1], 2), losses.LabelError, r"prompt\[0\] is -1"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong(trainer())


def test_a_model_without_a_cache_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 5, key=random.key(0)))
    made = train.AutoregressiveTrainer(model, optim.sgd(0.1), context=4, batch_size=1, device="host")
    with pytest.raises(ag.SettingError, match="Sequential has no step and init_cache"):
        made.generate([1], 2)
