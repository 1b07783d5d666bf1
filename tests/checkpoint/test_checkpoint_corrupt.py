"""Files that cannot be trusted: one error class, names and numbers, and no allocation that a header only claims."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antegrad.checkpoint import decode, encode
from antegrad.checkpoint.header import FILE_DTYPES
from antegrad.errors import CheckpointError
from antegrad.ir.types import SHORT_NAMES

safetensors = pytest.importorskip("safetensors", reason="safetensors is the reference here, and not installed")

SOUND = b"".join(encode({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, bool)}, {"k": "v"}))
HEADER = int.from_bytes(SOUND[:8], "little")


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with `header` (an object, or the bytes themselves), a true or a lying length, and `data`."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(shape: Any, begin: Any, end: Any, dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]} | more


ONE = tensor([1], 0, 4)
TWICE = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
FIELD_TWICE = b'{"a":{"dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,4]}}'
CORRUPT: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"the file has 0 bytes, expected at least the 8"),
    "seven-bytes": (b"\0" * 7, r"the file has 7 bytes"),
    "no-header": (b"\0" * 8, r"the header starts with b''"),
    "short": (SOUND[:-4], r"tensor 'b' ends at byte 28 of the data, and the file holds 24: 4 bytes are missing"),
    "long": (SOUND + b"xx", r"2 bytes follow tensor 'b': the header describes 28 bytes of 30"),
    "long-without-tensors": (raw({}, b"abc"), r"3 bytes follow the start of the data"),
    "length-2^40": (raw({}, length=2**40), r"said to have 1099511627776 bytes, and 2 bytes follow"),
    "length-2^64-1": (raw({}, length=2**64 - 1), r"said to have 18446744073709551615 bytes, and 2 bytes follow"),
    "length-short": (raw({"a": ONE}, b"1234", length=10), r"the header of 10 bytes is not JSON"),
    "length-zero": (raw({"a": ONE}, b"1234", length=0), r"the header starts with b''"),
    "not-utf8": (raw(b'{"\xff":1}'), r"the header of 7 bytes is not UTF-8 text \(.* at byte 2\)"),
    "not-json": (raw(b"{nonsense}"), r"the header of 10 bytes is not JSON"),
    "leading-space": (raw(b" {}"), r"the header starts with b' \{\}'"),
    "not-object": (raw(b"[1,2]"), r"the header starts with b'\[1,2\]'"),
    "deep": (raw(b'{"a":' + b"[" * 100_000), r"nests too deeply|is not JSON"),
    "endless-number": (raw(b'{"a":' + b"1" * 5000 + b"}"), r"is not JSON"),
    "entry-not-object": (raw({"a": [1]}), r"tensor 'a' is \[1\], expected a JSON object"),
    "missing-dtype": (raw({"a": {"shape": [], "data_offsets": [0, 0]}}), r"'a' has the fields shape, data_offsets,"),
    "missing-shape": (raw({"a": {"dtype": "F32", "data_offsets": [0, 0]}}), r"'a' has the fields dtype, data_offsets"),
    "missing-offsets": (raw({"a": {"dtype": "F32", "shape": []}}), r"'a' has the fields dtype, shape,"),
    "no-fields": (raw({"a": {}}), r"'a' has the fields none"),
    "unknown-field": (raw({"a": ONE | {"strides": [1]}}, b"1234"), r"dtype, shape, data_offsets, strides, expected"),
    "unknown-dtype": (raw({"a": tensor([1], 0, 8, "C64")}, b"12345678"), r"'a' has the element type 'C64'.*F64"),
    "dtype-not-text": (raw({"a": tensor([1], 0, 4, ["F32"])}, b"1234"), r"'a' has the element type \['F32'\]"),
    "negative-shape": (raw({"a": tensor([-1, -1], 0, 4)}, b"1234"), r"'a' has the shape \[-1, -1\]"),
    "float-shape": (raw({"a": tensor([1.0], 0, 4)}, b"1234"), r"'a' has the shape \[1.0\]"),
    "bool-shape": (raw({"a": tensor([True], 0, 4)}, b"1234"), r"'a' has the shape \[True\]"),
    "text-shape": (raw({"a": tensor("1", 0, 4)}, b"1234"), r"'a' has the shape '1'"),
    "shape-2^63": (raw({"a": tensor([2**63, 0], 0, 0)}), r"'a' has the shape \[9223372036854775808, 0\]"),
    "shape-beyond-numpy": (raw({"a": tensor([0, 2**62], 0, 0)}), r"'a' of type f32\[0,46\d+\] cannot be made"),
    "shape-product-2^80": (raw({"a": tensor([2**40] * 2, 0, 4)}, b"1234"), r"'a' of type f32.* takes 48357\d+ bytes"),
    "rank-65": (raw({"a": tensor([1] * 65, 0, 4)}, b"1234"), r"'a' has the shape .* at most 64"),
    "span-small": (raw({"a": tensor([2], 0, 4)}, b"1234"), r"'a' of type f32\[2\] takes 8 bytes, .*\[0, 4\] span 4"),
    "span-large": (raw({"a": tensor([1], 0, 8)}, b"12345678"), r"'a' of type f32\[1\] takes 4 bytes, .* span 8"),
    "span-huge": (raw({"a": tensor([2**38], 0, 2**40)}, b"1234"), r"'a' ends at byte 1099511627776 .* holds 4"),
    "offsets-reversed": (raw({"a": tensor([1], 4, 0)}, b"1234"), r"'a' has the offsets \[4, 0\]"),
    "offsets-negative": (raw({"a": tensor([1], -4, 0)}, b"1234"), r"'a' has the offsets \[-4, 0\]"),
    "offsets-float": (raw({"a": tensor([1], 0, 4.0)}, b"1234"), r"'a' has the offsets \[0, 4.0\]"),
    "offsets-three": (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}), r"'a' has the offsets"),
    "overlap": (raw({"a": tensor([2], 0, 8), "b": tensor([1], 4, 8)}, b"12345678"), r"'b' starts at byte 4 .*'a'.* 8"),
    "same-bytes": (raw({"a": ONE, "b": ONE}, b"1234"), r"tensor 'b' starts at byte 0 .* overlaps tensor 'a'"),
    "hole": (
        raw({"a": ONE, "b": tensor([1], 8, 12)}, b"x" * 12),
        r"'b' starts at byte 8 .* hole after tensor 'a' at 4",
    ),
    "hole-at-start": (raw({"a": tensor([1], 4, 8)}, b"12345678"), r"'a' starts at byte 4 .* hole"),
    "key-twice": (raw(TWICE, b"1234"), r"the header has the key 'a' 2 times"),
    "field-twice": (raw(FIELD_TWICE, b"1234"), r"tensor 'a' has the key 'shape' 2 times"),
    "metadata-twice": (raw(b'{"__metadata__":{},"__metadata__":{}}'), r"the header has the key '__metadata__' 2 times"),
    "metadata-key-twice": (raw(b'{"__metadata__":{"k":"1","k":"2"}}'), r"__metadata__ has the key 'k' 2 times"),
    "metadata-number": (raw({"__metadata__": {"k": 3}}), r"__metadata__ has 3 under 'k', expected text"),
    "metadata-null": (raw({"__metadata__": None}), r"__metadata__ is None, expected a JSON object"),
    "metadata-object": (raw({"__metadata__": {"k": {"x": "y"}}}), r"__metadata__ has \{'x': 'y'\} under 'k'"),
    "surrogate-name": (raw(b'{"\\ud800":1}'), r"the header has the key '\\ud800', which is not text"),
    "bool-bytes": (raw({"a": tensor([3], 0, 3, "BOOL")}, b"\0\2\3"), r"'a' of type bool\[3\] has 2 bytes that are nei"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_case_safetensors_corrupt(name: str) -> None:
    data, message = CORRUPT[name]
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            decode(io.BytesIO(data), "some/file.safetensors")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "some/file.safetensors" in str(caught.value)
    assert peak < 200_000 + 40 * len(data)


def test_a_refused_value_is_quoted_in_part() -> None:
    with pytest.raises(CheckpointError) as caught:
        decode(io.BytesIO(raw({"a": tensor([-1] * 10_000, 0, 0)})), "x")
    assert len(str(caught.value)) < 400


def test_a_header_beyond_the_format_s_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antegrad.checkpoint.codec.MAX_HEADER", HEADER - 1)
    with pytest.raises(CheckpointError, match=rf"said to have {HEADER} bytes, expected at most {HEADER - 1}"):
        decode(io.BytesIO(SOUND), "x")


def test_every_truncation_is_refused() -> None:
    for size in range(len(SOUND)):
        with pytest.raises(CheckpointError, match="cannot read x"):
            decode(io.BytesIO(SOUND[:size]), "x")


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    class Shrinking(io.BytesIO):
        def seek(self, offset: int, whence: int = 0, /) -> int:
            size = super().seek(offset, whence)
            if whence == io.SEEK_END:
                self.truncate(len(SOUND) - 3)
            return size

    with pytest.raises(CheckpointError, match=r"tensor 'b' has 4 bytes, and the file ended after 1 of them"):
        decode(Shrinking(SOUND), "x")


def contents(data: bytes) -> tuple[dict[str, tuple[str, list[int], bytes]], dict[str, str]] | None:
    """What `decode` makes of `data`, in the form of the library's reader; None when it refuses. No other error."""
    try:
        tensors, metadata = decode(io.BytesIO(data), "x")
    except CheckpointError:
        return None
    file_names = {dtype: name for name, dtype in FILE_DTYPES.items()}
    assert all(array.dtype in SHORT_NAMES for array in tensors.values())
    return {n: (file_names[a.dtype], list(a.shape), a.tobytes()) for n, a in tensors.items()}, metadata


def agrees_with_the_library(data: bytes) -> bool:
    """Whether `decode` accepts `data`; and if so, assert that the library reads the very same from it.

    A changed byte can make another sound file (the name ``b`` into ``c``, ``F32`` into ``I32``), so equality with the
    original is not to be had without a checksum; equality with an independent reader is.
    """
    ours = contents(data)
    if ours is None:
        return False
    try:
        theirs = {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        assert b"-0" in data[8:], "accepted a file that the library refuses"  # Python reads -0 as the whole number 0
        return True
    assert ours[0] == theirs
    return True


def test_every_byte_of_the_header_changed() -> None:
    accepted = refused = 0
    for position in range(8 + HEADER):
        for value in {0, 32, 34, 48, 57, 123, 255, *(SOUND[position] ^ (1 << bit) for bit in range(8))}:
            changed = bytearray(SOUND)
            changed[position] = value
            if agrees_with_the_library(bytes(changed)):
                accepted += 1
            else:
                refused += 1
    assert accepted > 50
    assert refused > 1000


EDITS = st.tuples(
    st.integers(0, HEADER - 1),
    st.integers(0, 4),
    st.binary(max_size=4)
    | st.sampled_from(
        [
            b"0",
            b"-",
            b"9",
            b",",
            b'"',
            b"{",
            b"}",
            b"[",
            b"]",
            b"null",
            b"true",
            b"1e3",
            b"\\u0000",
            b"\\ud800",
            b"BF16",
            b"BOOL",
        ]
    ),
)


@settings(deadline=None)
@given(st.lists(EDITS, min_size=1, max_size=4), st.booleans())
def test_edited_headers(edits: list[tuple[int, int, bytes]], keep_length: bool) -> None:
    """Bytes deleted and inserted anywhere in the header, with the old length field or a true one."""
    header = SOUND[8 : 8 + HEADER]
    for position, deleted, inserted in edits:
        header = header[:position] + inserted + header[position + deleted :]
    agrees_with_the_library(raw(header, SOUND[8 + HEADER :], HEADER if keep_length else None))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(sorted(FILE_DTYPES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
SIZES = st.lists(st.integers(0, 3), max_size=3) | JSON
ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(sorted(FILE_DTYPES)) | JSON, "shape": SIZES},
    optional={"data_offsets": st.tuples(st.integers(0, 9), st.integers(0, 9)) | JSON},
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), ENTRY | JSON, max_size=3), st.binary(max_size=16))
def test_made_up_headers(header: dict[str, Any], data: bytes) -> None:
    agrees_with_the_library(raw(header, data))


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_arbitrary_bytes(data: bytes) -> None:
    agrees_with_the_library(data)
