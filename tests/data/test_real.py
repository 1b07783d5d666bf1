"""The real data sets, where the environment variable ANTEGRAD_DATA names a copy of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antegrad.data import CharTokenizer, cache, cifar10, mnist, text_corpus, tiny_shakespeare


def needs(name: str) -> None:
    if cache.local_copy(name) is None:
        pytest.skip(f"{cache.LOCAL_COPY} names no directory with {name}")


@pytest.mark.parametrize(("split", "count", "first"), [("train", 60_000, [5, 0, 4]), ("test", 10_000, [7, 2, 1])])
def test_mnist(split: str, count: int, first: list[int]) -> None:
    needs("mnist")
    data = mnist(split)
    assert data.inputs.shape == (count, 28, 28)
    assert data.targets[:3].tolist() == first
    if split == "train":
        assert data.inputs.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "count"), [("train", 50_000), ("test", 10_000)])
def test_cifar10(tmp_path: Path, split: str, count: int) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("PIL", reason="pillow is not installed")
    needs("cifar10")
    data = cifar10(split, cache=tmp_path)
    assert data.inputs.shape == (count, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.targets), [count // 10] * 10)
    np.testing.assert_allclose(data.inputs.mean((0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=5e-3)
    np.testing.assert_array_equal(cifar10(split, cache=tmp_path).inputs, data.inputs)


def test_tiny_shakespeare() -> None:
    needs("tinyshakespeare")
    train, validation = tiny_shakespeare("train"), tiny_shakespeare("validation")
    assert (len(train), len(validation)) == (1_003_854, 111_540)
    tokenizer = CharTokenizer.fit(tiny_shakespeare())
    assert tokenizer.vocabulary_size == 65
    corpus = text_corpus(train, tokenizer)
    assert corpus.dtype == np.uint16
    assert corpus[:10].tolist() == [18, 47, 56, 57, 58, 1, 15, 47, 58, 47]
    assert tokenizer.decode(corpus) == train
