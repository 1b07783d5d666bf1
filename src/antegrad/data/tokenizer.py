"""Tokenizers: one small protocol, one of characters, and those of other libraries through it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from antegrad.data.cache import replace_file
from antegrad.data.error import DataError
from antegrad.ir.types import is_integer

__all__ = ["CharTokenizer", "Tokenizer", "as_tokenizer", "token_dtype"]

FORMAT = "antegrad.CharTokenizer/1"


@runtime_checkable
class Tokenizer(Protocol):
    """What antegrad asks of a tokenizer."""

    @property
    def vocabulary_size(self) -> int:
        """All tokens are below it."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """The tokens of `text`, an integer array of one axis."""
        ...

    def decode(self, tokens: Any) -> str:
        """The text of `tokens`, integers along one axis."""
        ...


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The type in which tokens are kept: u16 where they all fit, else i32."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)


@dataclass(frozen=True)
class CharTokenizer:
    """Each character is a token: its place in `characters`, which are all different and in the order of Unicode.

    Raises `DataError` for characters that are none, not ascending, or repeated.
    """

    characters: str

    def __post_init__(self) -> None:
        if not self.characters or list(self.characters) != sorted(set(self.characters)):
            raise DataError(f"expected different characters in ascending order, found {self.characters[:80]!r}")

    @classmethod
    def fit(cls, text: str) -> CharTokenizer:
        """The tokenizer of exactly the characters that occur in `text`."""
        if not text:
            raise DataError("CharTokenizer.fit: expected a text with characters, found an empty one")
        return cls("".join(sorted(set(text))))

    @property
    def vocabulary_size(self) -> int:
        """The number of different characters."""
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """The tokens of `text`: u16[len(text)], or i32 for more than 65,536 characters.

        Raises `DataError` with character and position for the first one that is not in the vocabulary.
        """
        known, codes = _code_points(self.characters), _code_points(text)
        tokens = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        unknown = np.flatnonzero(known[tokens] != codes)
        if unknown.size:
            at = int(unknown[0])
            raise DataError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}) at position {at} is not among the "
                f"{self.vocabulary_size} characters of the tokenizer"
            )
        return tokens.astype(token_dtype(self.vocabulary_size))

    def decode(self, tokens: Any) -> str:
        """The text of `tokens`, integers of any type along one axis.

        Raises `DataError` with position and value for the first one that is no token.
        """
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or (tokens.size and not is_integer(tokens.dtype)):
            raise DataError(f"decode: expected integers along one axis, found {tokens.dtype}{[*tokens.shape]}")
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self.vocabulary_size))
        if wrong.size:
            at = wrong[0]
            raise DataError(f"token {tokens[at]} at position {at} is not below {self.vocabulary_size}")
        codes = _code_points(self.characters)[tokens.astype(np.intp)]
        return codes.tobytes().decode("utf-32-le", "surrogatepass")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer to the JSON file `path`, replacing what was there."""
        content = json.dumps({"format": FORMAT, "characters": self.characters})
        replace_file(Path(path), lambda stream: stream.write(content.encode("ascii")))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CharTokenizer:
        """The tokenizer that was saved to `path`; a `DataError` says what else the file is."""
        try:
            content = json.loads(Path(path).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: cannot be read, {error}") from error
        characters = content.get("characters") if isinstance(content, dict) else None
        if not isinstance(characters, str) or content.get("format") != FORMAT:
            raise DataError(f"{path}: expected a JSON object of format {FORMAT} with characters, found {content!r:.80}")
        return cls(characters)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


@dataclass(frozen=True)
class _Tokenizers:
    """A ``tokenizers.Tokenizer`` of Hugging Face."""

    tokenizer: Any

    @property
    def vocabulary_size(self) -> int:
        # `get_vocab_size` counts the tokens, and their numbers may have gaps.
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str) -> np.ndarray:
        # A corpus is a stream: what belongs around each single text does not belong around it.
        return np.asarray(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def decode(self, tokens: Any) -> str:
        return self.tokenizer.decode(np.asarray(tokens).tolist(), skip_special_tokens=False)


@dataclass(frozen=True)
class _Encoding:
    """A ``tiktoken.Encoding``."""

    encoding: Any

    @property
    def vocabulary_size(self) -> int:
        return self.encoding.n_vocab

    def encode(self, text: str) -> np.ndarray:
        # `encode` refuses a text in which a special token is spelled out; in a corpus it is text like any other.
        encode = getattr(self.encoding, "encode_ordinary", self.encoding.encode)
        return np.asarray(encode(text), np.int64)

    def decode(self, tokens: Any) -> str:
        return self.encoding.decode(np.asarray(tokens).tolist())


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """`tokenizer` as a `Tokenizer`: one already, a ``tokenizers.Tokenizer``, a ``tiktoken.Encoding``, or their like.

    Special tokens are neither added nor, where their names stand in a text, recognised. Raises `DataError` for an
    object that is none of these: the three are told apart by `vocabulary_size`, `get_vocab_size` and `n_vocab`.
    """
    if callable(getattr(tokenizer, "encode", None)) and callable(getattr(tokenizer, "decode", None)):
        if isinstance(tokenizer, Tokenizer):
            return tokenizer
        if hasattr(tokenizer, "get_vocab_size"):
            return _Tokenizers(tokenizer)
        if hasattr(tokenizer, "n_vocab"):
            return _Encoding(tokenizer)
    raise DataError(
        f"expected a tokenizer with encode, decode and one of vocabulary_size, get_vocab_size and n_vocab, "
        f"found {type(tokenizer).__name__}"
    )
