"""The safetensors codec: what is stored comes back bit for bit, and other programs read the same file."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antegrad.checkpoint import codec, decode, encode
from antegrad.checkpoint.store import opened
from antegrad.errors import CheckpointError
from antegrad.ir.types import BF16, DTYPES, TensorType

safetensors = pytest.importorskip("safetensors", reason="safetensors is the reference here, and not installed")
pytest.importorskip("safetensors.numpy")


def to_file(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    return b"".join(encode(tensors, metadata or {}))


def from_file(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    return decode(io.BytesIO(data), "test.safetensors")


def round_trip(array: np.ndarray) -> np.ndarray:
    return from_file(to_file({"a": array}))[0]["a"]


def bits(array: np.ndarray) -> tuple[str, bytes]:
    """Type and C-order bytes in the host's byte order: equal for equal bits, NaN included."""
    native = array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array
    return str(TensorType(native.shape, native.dtype)), native.tobytes("C")


def samples() -> dict[str, np.ndarray]:
    """One array of every element type with its extreme values, by short name."""
    arrays = {}
    for name, dtype in DTYPES.items():
        raw = np.random.default_rng(7).integers(0, 256, (2, 3, dtype.itemsize), dtype=np.uint8)
        raw = raw & 1 if name == "bool" else raw
        raw[0, 0] = 1 if name == "bool" else 255
        arrays[name] = raw.view(dtype)[..., 0]
    return arrays


NON_CONTIGUOUS = {
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "strided": np.arange(6, dtype=np.float32)[::2],
    "reversed": np.arange(6, dtype=np.float32)[::-1],
    "transposed": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "broadcast": np.broadcast_to(np.float32(3), (2, 2)),
}


@pytest.mark.parametrize("order", NON_CONTIGUOUS)
def test_case_safetensors_fortran(order: str, tmp_path: Path) -> None:
    array = NON_CONTIGUOUS[order]
    np.testing.assert_array_equal(round_trip(array), array)
    path = tmp_path / "a.safetensors"
    path.write_bytes(to_file({"a": array}))
    np.testing.assert_array_equal(safetensors.numpy.load_file(path)["a"], array)


def test_case_safetensors_bf16() -> None:
    every_value = np.arange(65536, dtype=np.uint16).view(BF16)
    back = round_trip(every_value)
    assert back.dtype == BF16
    np.testing.assert_array_equal(back.view(np.uint16), np.arange(65536))


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_type_keeps_its_bits(name: str) -> None:
    array = samples()[name]
    back = round_trip(array)
    assert bits(back) == bits(array)
    assert (back.shape, back.dtype) == (array.shape, array.dtype)


def test_the_library_reads_our_file(tmp_path: Path) -> None:
    arrays = {name: array for name, array in samples().items() if name != "bf16"}
    path = tmp_path / "ours.safetensors"
    path.write_bytes(to_file(arrays, {"note": "größer", "empty": ""}))
    theirs = safetensors.numpy.load_file(path)
    assert {name: bits(array) for name, array in theirs.items()} == {name: bits(a) for name, a in arrays.items()}
    with safetensors.safe_open(path, framework="np") as opened:
        assert opened.metadata() == {"note": "größer", "empty": ""}


def test_we_read_the_library_s_file() -> None:
    arrays = {name: array for name, array in samples().items() if name != "bf16"} | {"scalar": np.array(2.5)}
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    tensors, metadata = from_file(safetensors.numpy.save(contiguous, {"format": "np"}))
    assert {name: bits(array) for name, array in tensors.items()} == {name: bits(a) for name, a in arrays.items()}
    assert metadata == {"format": "np"}


def test_torch_reads_our_file_and_we_read_its(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs_io = importlib.import_module("safetensors.torch")
    path = tmp_path / "ours.safetensors"
    path.write_bytes(to_file(samples()))
    theirs = theirs_io.load_file(path)
    for name, array in samples().items():
        seen = theirs[name].contiguous().view(torch.uint8)
        assert (list(theirs[name].shape), seen.numpy().tobytes()) == (list(array.shape), array.tobytes()), name
    theirs_io.save_file(theirs, tmp_path / "theirs.safetensors", {"format": "pt"})
    ours, metadata = from_file((tmp_path / "theirs.safetensors").read_bytes())
    assert {name: bits(array) for name, array in ours.items()} == {name: bits(a) for name, a in samples().items()}
    assert metadata == {"format": "pt"}


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of any element type, of rank 0 to 4 with sizes from 0, in any memory order and byte order."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.uint8)
    array = (data & 1 if dtype == DTYPES["bool"] else data).view(dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    array = array[tuple(slice(None, None, draw(st.sampled_from([1, -1, 2]))) for _ in shape)] if shape else array
    if dtype != BF16 and draw(st.booleans()):
        array = array.astype(array.dtype.newbyteorder(">"))
    return array


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=8).filter(lambda name: name != "__metadata__"), arrays(), max_size=4),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_round_trip(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    data = to_file(tensors, metadata)
    back, back_metadata = from_file(data)
    assert {name: bits(array) for name, array in back.items()} == {name: bits(a) for name, a in tensors.items()}
    assert back_metadata == metadata
    theirs = dict(safetensors.deserialize(data))
    assert {name: bytes(entry["data"]) for name, entry in theirs.items()} == {n: bits(a)[1] for n, a in tensors.items()}


def test_a_big_endian_array_is_stored_by_value() -> None:
    array = np.array([1, 2**31, -3], dtype=">i8")
    back = round_trip(array)
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, array)


def test_a_big_endian_host_swaps_both_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    array = np.array([1.0, 2.0], dtype=np.float32)
    plain = to_file({"a": array})
    monkeypatch.setattr(codec, "HOST_IS_BIG_ENDIAN", True)
    swapped = to_file({"a": array})
    assert swapped[-8:] == plain[-8:][3::-1] + plain[-8:][:3:-1]
    np.testing.assert_array_equal(from_file(swapped)[0]["a"], array)
    (tmp_path / "a.safetensors").write_bytes(swapped)
    with opened(tmp_path / "a.safetensors") as reader:
        np.testing.assert_array_equal(reader.read("a"), array)


def test_loaded_arrays_are_plain() -> None:
    tensors, _ = from_file(to_file({"a": np.ones((2, 3), order="F"), "scalar": np.array(1), "none": np.ones((0, 3))}))
    for array in tensors.values():
        assert type(array) is np.ndarray
        assert array.flags.owndata
        assert array.flags.writeable
        assert array.flags.c_contiguous
    assert tensors["scalar"].shape == ()
    assert tensors["none"].shape == (0, 3)


def test_equal_contents_give_equal_bytes() -> None:
    tensors = samples()
    metadata = {key: key for key in "abcdefgh"}
    backwards = to_file(dict(reversed(tensors.items())), dict(reversed(metadata.items())))
    assert to_file(tensors, metadata) == backwards


def test_data_is_aligned_to_its_element_type() -> None:
    data = to_file({"a": np.ones(3, np.uint8), "b": np.ones(3, np.float64), "c": np.ones(1, np.float16)}, {"x": "y"})
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    begins = {name: (8 + length + entries[name]["data_offsets"][0]) for name in "abc"}
    assert begins["b"] % 8 == 0
    assert begins["c"] % 2 == 0


def test_contiguous_arrays_are_not_copied() -> None:
    array = np.zeros(4, np.float32)
    pieces = encode({"a": array}, {})
    array[0] = 5
    assert from_file(b"".join(pieces))[0]["a"][0] == 5


def test_a_bool_with_other_bytes_is_stored_as_true() -> None:
    data = to_file({"a": np.array([0, 1, 2], np.uint8).view(bool)})
    assert data[-3:] == b"\0\1\1"


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"a": np.ones(2, complex)}, {}, r"cannot save 'a': its element type is complex128, expected one of f64"),
        ({"a": np.array(["x"])}, {}, r"cannot save 'a': its element type is <U1"),
        ({"a": np.array([{}])}, {}, r"cannot save 'a': its element type is object"),
        ({"a": [1.0, 2.0]}, {}, r"cannot save 'a': expected an array, found list"),
        ({"a": None}, {}, r"cannot save 'a': expected an array, found NoneType"),
        ({"__metadata__": np.ones(1)}, {}, r"cannot save a tensor as '__metadata__'"),
        ({3: np.ones(1)}, {}, r"cannot save a tensor as 3"),
        ({"\ud800": np.ones(1)}, {}, r"cannot save a tensor as '\\ud800'"),
        ({}, {"step": 3}, r"cannot save metadata 'step': 3, expected text"),
        ({}, {"step": "\udfff"}, r"cannot save metadata 'step'"),
    ],
)
def test_what_cannot_be_stored_is_refused_at_once(tensors: Any, metadata: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        encode(tensors, metadata)


def test_a_header_beyond_the_format_s_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antegrad.checkpoint.header.MAX_HEADER", 1000)
    with pytest.raises(CheckpointError, match=r"take \d{4} bytes, and a safetensors header holds at most 1000"):
        encode({}, {"note": "x" * 1000})
