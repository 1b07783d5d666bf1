"""Text: the tiny Shakespeare corpus, and texts as arrays of tokens."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

from antegrad.data.download import Source, fetch, read_contents
from antegrad.data.error import DataError
from antegrad.data.tokenizer import as_tokenizer, token_dtype

__all__ = ["text_corpus", "tiny_shakespeare"]

TINY_SHAKESPEARE = Source(
    "tinyshakespeare/input.txt",
    (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "https://raw.githubusercontent.com/jcjohnson/torch-rnn/master/data/tiny-shakespeare.txt",
    ),
    1115394,
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


def tiny_shakespeare(
    split: str | None = None, *, cache: str | os.PathLike[str] | None = None, progress: bool | None = None
) -> str:
    """Plays of Shakespeare as one text of 1,115,394 characters, 65 different ones. Source: Karpathy's char-rnn (2015).

    Args:
      split: "train", the first 1,003,854 characters (90 %); "validation", the others; None for the whole text. The
        place of the cut is that of nanoGPT.
      cache: the directory for downloads; None means the user's cache directory.
      progress: whether to draw a progress bar; None draws one where stderr is a terminal.

    Raises:
      DataError: the file cannot be had, or is another one.
    """
    if split not in ("train", "validation", None):
        raise DataError(f"tiny_shakespeare: expected the split train, validation or None, found {split!r}")
    path = fetch(TINY_SHAKESPEARE, cache, progress)
    content = read_contents(path)
    found = hashlib.sha256(content).hexdigest()
    if found != TINY_SHAKESPEARE.sha256:
        raise DataError(
            f"{path}: expected {TINY_SHAKESPEARE.size} bytes with SHA-256 {TINY_SHAKESPEARE.sha256}, "
            f"found {len(content)} with {found}"
        )
    text = content.decode("ascii")
    cut = int(len(text) * 0.9)
    return {"train": text[:cut], "validation": text[cut:], None: text}[split]


def text_corpus(text: str, tokenizer: Any) -> np.ndarray:
    """The tokens of `text`, in the narrowest type: u16[n] for a vocabulary of at most 65,536, else i32[n].

    Args:
      text: at least one token.
      tokenizer: anything that `as_tokenizer` takes.

    Raises:
      DataError: no token, or a token outside of the vocabulary.
    """
    tokenizer = as_tokenizer(tokenizer)
    tokens = np.asarray(tokenizer.encode(text))
    if not tokens.size:
        raise DataError(f"text_corpus: a text of {len(text)} characters gave no token")
    size = tokenizer.vocabulary_size
    wrong = np.flatnonzero((tokens < 0) | (tokens >= size))
    if wrong.size:
        raise DataError(f"text_corpus: token {wrong[0]} is {tokens[wrong[0]]}, and the vocabulary has {size}")
    return tokens.astype(token_dtype(size), copy=False)
