"""Tokenizers, texts as tokens, and the tiny Shakespeare corpus from a file that is made here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antegrad.data import CharTokenizer, DataError, Tokenizer, as_tokenizer, cache, text, text_corpus, tiny_shakespeare

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n"
ANY_TEXT = st.text(st.characters(), min_size=1)  # surrogates among them


def test_encode_and_decode() -> None:
    tokenizer = CharTokenizer.fit("hello, world")
    assert tokenizer.characters == " ,dehlorw"
    assert tokenizer.vocabulary_size == 9
    tokens = tokenizer.encode("hello")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [4, 3, 5, 5, 6]
    assert tokenizer.decode(tokens) == "hello"
    assert tokenizer.decode([0, np.int64(1)]) == " ,"
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.decode([]) == ""


@given(ANY_TEXT, st.integers(0))
def test_every_text_comes_back(sample: str, place: int) -> None:
    tokenizer = CharTokenizer.fit(sample)
    tokens = tokenizer.encode(sample)
    assert tokenizer.decode(tokens) == sample
    assert [tokenizer.characters[token] for token in tokens] == list(sample)
    at = place % (len(sample) + 1)
    stranger = chr(max(map(ord, sample)) + 1) if max(map(ord, sample)) < 0x10FFFF else ""
    if stranger:
        with pytest.raises(DataError, match=rf"at position {at} is not among"):
            tokenizer.encode(sample[:at] + stranger + sample[at:])


def test_unknown_characters_are_named() -> None:
    with pytest.raises(DataError, match=r"character 'é' \(U\+00E9\) at position 3 is not among the 3 characters"):
        CharTokenizer.fit("cafe"[:3]).encode("cafés")
    with pytest.raises(DataError, match=r"character 'a' \(U\+0061\) at position 0"):
        CharTokenizer.fit("z").encode("a")


def test_wide_vocabulary() -> None:
    tokenizer = CharTokenizer("".join(chr(code) for code in range(0x10000 + 1)))
    assert tokenizer.encode("\U00010000").dtype == np.int32
    assert tokenizer.encode("\U00010000").tolist() == [0x10000]
    assert CharTokenizer(tokenizer.characters[:-1]).encode("\uffff").dtype == np.uint16


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([0, 3], "token 3 at position 1 is not below 3"),
        (np.array([0, 1, -1]), "token -1 at position 2"),
        ([[0]], "integers along one axis, found int64"),
        ([0.5], "integers along one axis, found float64"),
        (0, "integers along one axis"),
    ],
)
def test_decode_refuses(tokens: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        CharTokenizer.fit("abc").decode(tokens)


@pytest.mark.parametrize("characters", ["", "ba", "aa"])
def test_characters_are_ascending(characters: str) -> None:
    with pytest.raises(DataError, match="different characters in ascending order"):
        CharTokenizer(characters)


def test_fit_refuses_nothing() -> None:
    with pytest.raises(DataError, match="found an empty one"):
        CharTokenizer.fit("")


@pytest.mark.parametrize("sample", [TEXT, '\ud800\n"\\é\U0001f600'])
def test_save_and_load(tmp_path: Path, sample: str) -> None:
    tokenizer = CharTokenizer.fit(sample)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert CharTokenizer.load(tmp_path / "tokenizer.json") == tokenizer
    json.loads((tmp_path / "tokenizer.json").read_text(encoding="ascii"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[1]", r"expected a JSON object of format antegrad.CharTokenizer/1 with characters, found \[1\]"),
        ('{"format": "antegrad.CharTokenizer/2", "characters": "ab"}', "expected a JSON object of format"),
        ('{"format": "antegrad.CharTokenizer/1", "characters": ["a"]}', "expected a JSON object of format"),
        ('{"format": "antegrad.CharTokenizer/1", "characters": "ba"}', "ascending order"),
    ],
)
def test_load_refuses(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=message):
        CharTokenizer.load(tmp_path / "tokenizer.json")


class Words:
    """A tokenizer of antegrad's own protocol."""

    vocabulary_size = 70_000

    def encode(self, text: str) -> np.ndarray:
        return np.array([len(word) for word in text.split()])

    def decode(self, tokens: Any) -> str:
        return " ".join("x" * token for token in tokens)


class Ids:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class LikeTokenizers:
    """The methods of ``tokenizers.Tokenizer``, with a gap in the numbers."""

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 5}

    def get_vocab_size(self) -> int:
        return 2

    def encode(self, text: str, add_special_tokens: bool = True) -> Ids:
        return Ids([{"a": 0, "b": 5}[c] for c in text] + [9] * add_special_tokens)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        assert all(type(i) is int for i in ids)
        return "".join({0: "a", 5: "b"}[i] for i in ids) + "?" * skip_special_tokens


class LikeTiktoken:
    """The methods of ``tiktoken.Encoding``."""

    n_vocab = 257

    def encode(self, text: str) -> list[int]:
        if "<end>" in text:
            raise ValueError("special token")
        return list(text.encode())

    def encode_ordinary(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode()


def test_other_tokenizers() -> None:
    words = Words()
    assert as_tokenizer(words) is words
    assert isinstance(CharTokenizer("ab"), Tokenizer)
    pair = as_tokenizer(LikeTokenizers())
    assert pair.vocabulary_size == 6
    assert pair.encode("abba").tolist() == [0, 5, 5, 0]
    assert pair.decode(np.array([5, 0], np.uint16)) == "ba"
    code = as_tokenizer(LikeTiktoken())
    assert code.vocabulary_size == 257
    assert code.encode("a<end>").tolist() == list(b"a<end>")
    assert code.decode(np.array([97, 98], np.uint16)) == "ab"


@pytest.mark.parametrize("other", [None, str, {"encode": 1}, "abc", Ids([])])
def test_other_things_are_no_tokenizer(other: Any) -> None:
    with pytest.raises(DataError, match=f"n_vocab, found {type(other).__name__}"):
        as_tokenizer(other)


def test_tokenizers_of_hugging_face() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 5, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert text_corpus("a b c", words).tolist() == [0, 5, 1]
    assert as_tokenizer(words).vocabulary_size == 6
    assert as_tokenizer(words).decode(np.array([0, 5])) == "a b"


def test_tiktoken() -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    ranks = {bytes([i]): i for i in range(256)}
    code = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=ranks, special_tokens={"<end>": 256})
    assert text_corpus("a<end>", code).tolist() == list(b"a<end>")
    assert as_tokenizer(code).vocabulary_size == 257


def test_corpus_is_narrow() -> None:
    tokenizer = CharTokenizer.fit(TEXT)
    corpus = text_corpus(TEXT, tokenizer)
    assert (corpus.dtype, corpus.shape) == (np.uint16, (len(TEXT),))
    assert tokenizer.decode(corpus) == TEXT
    assert text_corpus("some words", Words()).dtype == np.int32
    assert text_corpus("abc", LikeTiktoken()).dtype == np.uint16


def test_corpus_refuses() -> None:
    with pytest.raises(DataError, match="a text of 0 characters gave no token"):
        text_corpus("", CharTokenizer("ab"))
    small = Words()
    small.vocabulary_size = 5
    with pytest.raises(DataError, match="token 1 is 5, and the vocabulary has 5"):
        text_corpus("four fifth", small)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a local copy, whose hash is then the one that is expected."""
    path = tmp_path / "tinyshakespeare" / "input.txt"
    path.parent.mkdir()
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    monkeypatch.setattr(text, "TINY_SHAKESPEARE", replace(text.TINY_SHAKESPEARE, size=len(TEXT), sha256=digest))
    monkeypatch.setenv(cache.LOCAL_COPY, str(tmp_path))
    return path


def test_tiny_shakespeare(path: Path) -> None:
    train, validation = tiny_shakespeare("train"), tiny_shakespeare("validation")
    assert tiny_shakespeare() == train + validation == TEXT
    assert len(train) == int(len(TEXT) * 0.9)
    with pytest.raises(DataError, match="expected the split train, validation or None, found 'test'"):
        tiny_shakespeare("test")


@pytest.mark.parametrize("content", [TEXT[:-1], "", "<!DOCTYPE html>", TEXT.upper()])
def test_case_dataset_corrupt(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(DataError, match=rf"expected {len(TEXT)} bytes with SHA-256 .*, found {len(content)} with"):
        tiny_shakespeare()
    assert path.read_text() == content, "a local copy is never touched"
