"""Names of training state: what was packed comes back exactly, and what does not fit is refused in one message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.checkpoint import (
    FORMAT_VERSION,
    Checkpoint,
    encode,
    load,
    pack,
    restore_optimizer,
    restore_parameters,
    save,
    training_info,
)
from antegrad.errors import CheckpointError
from antegrad.ir.types import DTYPES, TensorType


def f32(*shape: int) -> TensorType:
    return TensorType(shape, DTYPES["f32"])


def values(*shape: int, start: float = 0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


PARAMETERS = {"0.w": values(2, 16), "0.b": values(16)}
MOMENTS = {"m.0.w": values(2, 16, start=1), "m.0.b": values(16), "v.0.w": values(2, 16), "v.0.b": values(16, start=9)}
TYPES = {name: f32(*array.shape) for name, array in PARAMETERS.items()}
MOMENT_TYPES = {name: f32(*array.shape) for name, array in MOMENTS.items()}


def stored(path: Path, *arguments: Any, **options: Any) -> Checkpoint:
    """What `load` gives for the packed and saved state."""
    return load(save(path / "run.safetensors", *pack(*arguments, **options)))


def edited(checkpoint: Checkpoint, **metadata: str | None) -> Checkpoint:
    """`checkpoint` with metadata entries (``antegrad.`` is prefixed) replaced, or dropped for None."""
    changed = checkpoint.metadata | {f"antegrad.{key}": value for key, value in metadata.items() if value is not None}
    dropped = {f"antegrad.{key}" for key, value in metadata.items() if value is None}
    kept = {key: value for key, value in changed.items() if key not in dropped}
    return Checkpoint(checkpoint.path, checkpoint.tensors, kept)


@pytest.fixture
def saved(tmp_path: Path) -> Checkpoint:
    return stored(tmp_path, PARAMETERS, MOMENTS, step=600, optimizer_kind="adam", seed=20260921, user={"note": "disc"})


def test_names_in_the_file(saved: Checkpoint) -> None:
    assert set(saved.tensors) == {
        *("param.0.w", "param.0.b", "opt.m.0.w", "opt.m.0.b", "opt.v.0.w", "opt.v.0.b"),
    }
    assert saved.metadata == {
        "antegrad.version": "1",
        "antegrad.optimizer": "adam",
        "antegrad.step": "600",
        "antegrad.seed": "20260921",
        "user.note": "disc",
    }


def test_state_comes_back(saved: Checkpoint) -> None:
    parameters = restore_parameters(saved, TYPES)
    moments = restore_optimizer(saved, MOMENT_TYPES, kind="adam")
    assert list(parameters) == list(TYPES)
    assert list(moments) == list(MOMENT_TYPES)
    for restored, original in ((parameters, PARAMETERS), (moments, MOMENTS)):
        for name, array in original.items():
            np.testing.assert_array_equal(restored[name], array, strict=True)
    info = training_info(saved)
    assert (info.version, info.step, info.seed, info.optimizer) == (1, 600, 20260921, "adam")
    assert info.user == {"note": "disc"}


@pytest.mark.parametrize("step", [0, 2**53 + 1, np.int32(7), np.uint64(2**64 - 1)])
def test_step_and_seed_are_exact(step: int, tmp_path: Path) -> None:
    info = training_info(stored(tmp_path, PARAMETERS, step=step, seed=-int(step)))
    assert (info.step, info.seed) == (int(step), -int(step))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": -1}, r"step -1: expected a whole number of at least 0"),
        ({"step": 1.0}, r"step 1.0: expected a whole number"),
        ({"step": True}, r"step True: expected a whole number"),
        ({"step": 1, "seed": "7"}, r"seed '7': expected a whole number"),
        ({"step": 1, "optimizer": MOMENTS}, r"optimizer given, optimizer_kind None: pass both"),
        ({"step": 1, "optimizer_kind": "adam"}, r"optimizer None, optimizer_kind 'adam': pass both"),
    ],
)
def test_pack_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        pack(PARAMETERS, **options)


def test_restored_arrays_are_copies(saved: Checkpoint) -> None:
    first = restore_parameters(saved, TYPES)
    first["0.w"][:] = -1
    np.testing.assert_array_equal(restore_parameters(saved, TYPES)["0.w"], PARAMETERS["0.w"])
    assert all(array.flags.owndata and array.flags.writeable for array in first.values())


def test_case_load_mismatch(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, {"0.w": values(5, 1), "0.b": values(3), "1.w": values(4)}, step=1)
    model = {"0.w": f32(3, 1), "0.b": f32(3), "2.b": f32(7)}
    with pytest.raises(CheckpointError) as caught:
        restore_parameters(checkpoint, model)
    message = str(caught.value)
    assert str(checkpoint.path) in message
    assert "missing from the file (1): param.2.b f32[7]" in message
    assert "in the file, not in the model (1): param.1.w f32[4]" in message
    assert "of another shape or type (1): param.0.w saved f32[5,1], model f32[3,1]" in message
    assert "param.0.b" not in message


@pytest.mark.parametrize(
    ("model", "part", "absent"),
    [
        ({**TYPES, "1.w": f32(3)}, "missing from the file (1): param.1.w f32[3]", "not in the model"),
        ({"0.w": TYPES["0.w"]}, "in the file, not in the model (1): param.0.b f32[16]", "missing"),
        ({**TYPES, "0.b": TensorType((16,), DTYPES["bf16"])}, "param.0.b saved f32[16], model bf16[16]", "missing"),
        ({**TYPES, "0.b": f32(16, 1)}, "param.0.b saved f32[16], model f32[16,1]", "not in the model"),
    ],
)
def test_case_load_mismatch_of_one_kind(
    model: dict[str, TensorType], part: str, absent: str, saved: Checkpoint
) -> None:
    with pytest.raises(CheckpointError) as caught:
        restore_parameters(saved, model)
    assert part in str(caught.value)
    assert absent not in str(caught.value)


def test_case_load_mismatch_of_optimizer_state(saved: Checkpoint) -> None:
    model = {"m.0.w": f32(2, 16), "m.0.b": f32(3), "v.0.w": f32(2, 16), "v.0.c": f32(16)}
    with pytest.raises(CheckpointError) as caught:
        restore_optimizer(saved, model, kind="adam")
    assert "missing from the file (1): opt.v.0.c f32[16] (saved as opt.v.0.b?)" in str(caught.value)
    assert "not in the model (1): opt.v.0.b f32[16]" in str(caught.value)
    assert "opt.m.0.b saved f32[16], model f32[3]" in str(caught.value)


def test_a_near_miss_is_suggested(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, {"encoder.weight": values(3)}, step=1)
    with pytest.raises(CheckpointError, match=r"param.encoder.weights f32\[3\] \(saved as param.encoder.weight\?\)"):
        restore_parameters(checkpoint, {"encoder.weights": f32(3)})


def test_long_lists_are_counted(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, {f"a{i}": values(1) for i in range(60)}, step=1)
    with pytest.raises(CheckpointError) as caught:
        restore_parameters(checkpoint, {f"b{i}": f32(1) for i in range(70)})
    assert "missing from the file (70): " in str(caught.value)
    assert "; and 20 more" in str(caught.value)
    assert "not in the model (60): " in str(caught.value)
    assert "; and 10 more" in str(caught.value)


def test_not_strict_takes_what_fits_and_refuses_other_shapes(saved: Checkpoint) -> None:
    assert list(restore_parameters(saved, {"9.w": f32(1), "0.b": f32(16)}, strict=False)) == ["0.b"]
    with pytest.raises(CheckpointError, match=r"param.0.b saved f32\[16\], model f32\[3\]"):
        restore_parameters(saved, {"0.b": f32(3)}, strict=False)


def test_entries_of_other_programs(tmp_path: Path) -> None:
    """Names decide: ``param.`` entries load without any metadata, others are extra even when the model has the name."""
    plain = load(save(tmp_path / "plain.safetensors", {"param.0.w": values(2)}))
    np.testing.assert_array_equal(restore_parameters(plain, {"0.w": f32(2)})["0.w"], values(2))
    bare = load(save(tmp_path / "bare.safetensors", {"param.0.w": values(2), "0.w": values(2, start=5)}))
    with pytest.raises(CheckpointError, match=r"not in the model \(1\): 0.w f32\[2\]"):
        restore_parameters(bare, {"0.w": f32(2)})
    with pytest.raises(CheckpointError, match=r"where training stood: metadata 'antegrad.version' is None"):
        training_info(plain)


def test_a_file_without_optimizer_state(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, PARAMETERS, step=600)
    assert list(restore_parameters(checkpoint, TYPES)) == list(TYPES)
    assert training_info(checkpoint).optimizer is None
    with pytest.raises(CheckpointError, match=r"cannot give the state of optimizer 'adam': it holds none"):
        restore_optimizer(checkpoint, MOMENT_TYPES, kind="adam")


def test_an_optimizer_without_state_of_its_own(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, PARAMETERS, {}, step=600, optimizer_kind="sgd")
    assert restore_optimizer(checkpoint, {}, kind="sgd") == {}


def test_an_optimizer_of_another_kind(saved: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"state of optimizer 'adam', and that of 'sgd' was asked for"):
        restore_optimizer(saved, MOMENT_TYPES, kind="sgd")
    with pytest.raises(CheckpointError, match=r"does not name the optimizer of its 4 entries"):
        restore_optimizer(edited(saved, optimizer=None), MOMENT_TYPES, kind="adam")


@pytest.mark.parametrize("version", [str(FORMAT_VERSION + 1), "0", "-1"])
def test_another_version_is_refused(version: str, saved: Checkpoint) -> None:
    other = edited(saved, version=version)
    for attempt in (
        lambda: restore_parameters(other, TYPES),
        lambda: restore_optimizer(other, MOMENT_TYPES, kind="adam"),
        lambda: training_info(other),
    ):
        with pytest.raises(CheckpointError, match=rf"has checkpoint version {version}, and this antegrad reads 1 to"):
            attempt()


@pytest.mark.parametrize(
    ("key", "text"),
    [("step", "1.5"), ("step", "-3"), ("step", ""), ("step", "1_0"), ("seed", " 7"), ("version", "one")],
)
def test_malformed_numbers_are_refused(key: str, text: str, saved: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=rf"metadata 'antegrad.{key}' is '{text}'"):
        training_info(edited(saved, **{key: text}))


def test_a_missing_step_is_refused(saved: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"metadata 'antegrad.step' is None"):
        training_info(edited(saved, step=None))
    assert training_info(edited(saved, seed=None)).seed is None


TIED = {"embed.w": f32(4, 2), "head.w": f32(4, 2), "head.b": f32(4)}


def tied_model() -> dict[str, np.ndarray]:
    embed = values(4, 2)
    return {"embed.w": embed, "head.w": embed, "head.b": values(4)}


def test_case_safetensors_tied(tmp_path: Path) -> None:
    tensors, metadata = pack(tied_model(), step=1)
    assert list(tensors) == ["param.embed.w", "param.head.b"]
    assert json.loads(metadata["antegrad.alias"]) == {"param.head.w": "param.embed.w"}
    checkpoint = load(save(tmp_path / "a.safetensors", tensors, metadata))
    assert checkpoint.tensors["param.head.w"] is checkpoint.tensors["param.embed.w"]
    parameters = restore_parameters(checkpoint, TIED)
    assert parameters["head.w"] is parameters["embed.w"]
    assert parameters["embed.w"] is not checkpoint.tensors["param.embed.w"]
    np.testing.assert_array_equal(parameters["head.w"], values(4, 2))


def test_case_safetensors_tied_by_memory(tmp_path: Path) -> None:
    """A view of the whole array is the same array; a transposed one, a part, or an equal copy is not."""
    embed = values(3, 3)
    views = {"a": embed, "b": embed[:], "c": embed.T, "d": embed.T, "e": embed[:2], "f": embed.copy()}
    tensors, metadata = pack(views, step=1)
    assert list(tensors) == ["param.a", "param.c", "param.e", "param.f"]
    assert json.loads(metadata["antegrad.alias"]) == {"param.b": "param.a", "param.d": "param.c"}
    back = restore_parameters(stored(tmp_path, views, step=1), {n: f32(*a.shape) for n, a in views.items()})
    for name, array in views.items():
        np.testing.assert_array_equal(back[name], array)


def test_case_safetensors_tied_only_for_the_same_object_when_empty() -> None:
    empty = np.zeros((0, 3), np.float32)
    tensors, _ = pack({"a": empty, "b": empty, "c": empty[:]}, step=1)
    assert list(tensors) == ["param.a", "param.c"]


def test_case_safetensors_tied_is_saved_again(tmp_path: Path) -> None:
    first = stored(tmp_path, tied_model(), step=1)
    again = load(save(tmp_path / "again.safetensors", first.tensors, first.metadata))
    assert again.tensors["param.head.w"] is again.tensors["param.embed.w"]
    assert (tmp_path / "again.safetensors").read_bytes() == first.path.read_bytes()


def test_case_safetensors_tied_undone_by_mistake(tmp_path: Path) -> None:
    first = stored(tmp_path, tied_model(), step=1)
    untied = first.tensors | {"param.head.w": values(4, 2)}
    with pytest.raises(
        CheckpointError, match=r"'param.head.w' as an alias of 'param.embed.w': they are two arrays now"
    ):
        save(tmp_path / "again.safetensors", untied, first.metadata)
    with pytest.raises(CheckpointError, match=r"there is no tensor 'param.embed.w'"):
        save(tmp_path / "again.safetensors", {"param.head.b": values(4)}, first.metadata)


def test_shared_optimizer_arrays_are_not_tied(tmp_path: Path) -> None:
    """One array of zeros for both moments is an accident of the first step, not a tie."""
    zeros = np.zeros(16, np.float32)
    checkpoint = stored(tmp_path, {"b": zeros}, {"m.b": zeros, "v.b": zeros}, step=0, optimizer_kind="adam")
    state = restore_optimizer(checkpoint, {"m.b": f32(16), "v.b": f32(16)}, kind="adam")
    assert state["m.b"] is not state["v.b"]
    assert not np.shares_memory(state["m.b"], state["v.b"])
    assert "antegrad.alias" not in checkpoint.metadata


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        ("[]", r"metadata 'antegrad.alias' is \[\], expected a JSON object"),
        ("{", r"metadata 'antegrad.alias' of 1 bytes is not JSON"),
        ('{"param.x": 3}', r"metadata 'antegrad.alias' has 3 under 'param.x'"),
        ('{"x": "param.0.w", "x": "param.0.b"}', r"has the key 'x' 2 times"),
        ('{"x": "param.9.w"}', r"'x' is an alias of 'param.9.w', and the file has no such tensor"),
        ('{"param.0.b": "param.0.w"}', r"'param.0.b' is a tensor and also an alias"),
        ('{"x": "y", "y": "param.0.w"}', r"has 'y' under 'x', expected the name of a stored tensor"),
    ],
)
def test_malformed_aliases_are_refused(alias: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"param.0.w": values(2), "param.0.b": values(2)}
    path.write_bytes(b"".join(encode(tensors, {"antegrad.alias": alias})))
    with pytest.raises(CheckpointError, match=rf"cannot read {path}: .*{message}"):
        load(path)


def test_user_metadata_must_be_text(tmp_path: Path) -> None:
    user: Any = {"epochs": 5}
    with pytest.raises(CheckpointError, match=r"cannot save metadata 'user.epochs': 5, expected text"):
        stored(tmp_path, PARAMETERS, step=1, user=user)
