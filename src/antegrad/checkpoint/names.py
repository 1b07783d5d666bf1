"""Weights of PyTorch and Hugging Face models in a model of antegrad, by a map from their names to ours.

What differs beside the names is the layout of kernels, which is converted: the first two axes of torch are the last two
here, in reverse order. A `Dense` holds [in, out] where ``torch.nn.Linear`` holds [out, in], a convolution
[..., in/groups, out] where torch holds [out, in/groups, ...], and a transposed one [..., out/groups, in] where torch
holds [in, out/groups, ...]. Embeddings, gains and biases are the same.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from antegrad.checkpoint.fit import check_fit
from antegrad.checkpoint.store import load
from antegrad.errors import CheckpointError
from antegrad.ir.types import TensorType, is_float, type_of
from antegrad.nn.convolution import Conv1D, Conv2D, ConvTranspose1D, ConvTranspose2D
from antegrad.nn.layers import Dense
from antegrad.nn.module import Module, submodules
from antegrad.nn.repeat import Repeat

M = TypeVar("M", bound=Module)
Rules = Sequence[tuple[str, str | None]]
Names = Callable[[str], str | None] | Rules

KERNELS = (Dense, Conv1D, Conv2D, ConvTranspose1D, ConvTranspose2D)
"""Layers whose ``w`` ends with the two axes that it begins with in torch, in reverse order."""
BRACES = re.compile(r"\{([^{}]*)\}")
ADVICE = (
    "Names of the file become names of the model by the map; a map to None leaves an entry out. "
    "16-bit floats are made f32 or f64 with widen=True."
)


@dataclass(frozen=True)
class _Slot:
    """A place for one array of the file: all of a parameter, or one layer of the stacked ones of a `Repeat`."""

    parameter: str
    index: tuple[int, ...]
    type: TensorType
    kernel: bool


def load_torch_names(
    source: str | os.PathLike[str] | Mapping[str, Any],
    model: M,
    names: Names,
    *,
    unchanged: Sequence[str] = (),
    widen: bool = False,
    strict: bool = True,
) -> M:
    """`model` with the weights of a PyTorch model.

        names = [(r"^encoder\\.layer\\.", "blocks."), (r"weight$", "w"), (r"bias$", "b"), (r"^pooler\\.", None)]
        model = checkpoint.load_torch_names("model.safetensors", model, names)

    Arguments:
      source: a safetensors file, or arrays by name (a torch state dict on the CPU without bf16).
      model: gives structure, shapes and element types. Layers of a `Repeat` at ``blocks`` are named as if they stood
        one by one: ``blocks.0.w``.
      names: from a name in the file to one of the model, or None to leave an entry out. Either a function, or rules
        (pattern, replacement) for `re.sub`, all of which are applied in turn; a rule with None leaves out what its
        pattern finds. Braces cut one array along the last axis that it has in the model:
        ``attention.{query,key,value}.w`` takes a fused map.
      unchanged: patterns of names in the file whose kernels have our layout already (``Conv1D`` of GPT-2).
      widen: turn f16 and bf16 into f32 or f64 where the model has these, which is exact. Nothing else is converted.
      strict: refuse what is missing and what is too many. Without it the model keeps what the file does not have.
    Raises one `CheckpointError` that lists all missing, unexpected and misfitting entries, with the types saved (in the
    layout of the model) and in the model. The model that was given is not changed.
    """
    title, tensors = _read(source)
    slots = dict(_slots(model))
    found: dict[str, np.ndarray] = {}
    extra: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        kept = any(re.search(pattern, name) for pattern in unchanged)
        for target, part in _placed(array, _targets(names, name), slots, kept, widen):
            if target in found:
                raise CheckpointError(f"two entries of {title} lead to {target!r}, and {name!r} is one of them")
            if target in slots:
                found[target] = part
            else:
                extra[target if target == name else f"{target} (from {name})"] = part
    saved = {name: type_of(array) for name, array in (found | extra).items()}
    expected = {name: slot.type for name, slot in slots.items()}
    check_fit(title, saved, expected, what="weights", strict=strict, advice=ADVICE)
    return model.with_parameters(_gathered(model.named_parameters(), slots, found))


def _read(source: Any) -> tuple[str, dict[str, np.ndarray]]:
    """What to call the source in a message, and its arrays."""
    if isinstance(source, Mapping):
        return "the mapping", {name: np.asarray(value).copy() for name, value in source.items()}
    checkpoint = load(source)
    return str(checkpoint.path), checkpoint.tensors


def _slots(model: Module) -> Iterator[tuple[str, _Slot]]:
    """Every name that the map may lead to."""
    modules = dict(submodules(model))
    repeats = [(f"{path}." if path else "", each.count) for path, each in modules.items() if isinstance(each, Repeat)]
    for parameter, leaf in model.named_parameters().items():
        owner, _, field = parameter.rpartition(".")
        kernel = field == "w" and isinstance(modules.get(owner), KERNELS)
        around = [(path, count) for path, count in repeats if parameter.startswith(f"{path}layers.")]
        type = type_of(leaf).with_shape(type_of(leaf).shape[len(around) :])
        for index in itertools.product(*(range(count) for _, count in around)):
            name = parameter
            for (path, _), place in reversed(list(zip(around, index, strict=True))):
                name = f"{path}{place}.{name.removeprefix(f'{path}layers.')}"
            yield name, _Slot(parameter, index, type, kernel)


def _targets(names: Names, name: str) -> list[str]:
    """Where the entry `name` goes: nowhere, to one name, or to several if its target has braces."""
    target: str | None = name
    if callable(names):
        target = names(name)
    else:
        for pattern, replacement in names:
            if replacement is None and re.search(pattern, target):
                return []
            target = target if replacement is None else re.sub(pattern, replacement, target)
    if target is None:
        return []
    braces = BRACES.search(target)
    if braces is None:
        return [target]
    return [f"{target[: braces.start()]}{part}{target[braces.end() :]}" for part in braces[1].split(",")]


def _placed(
    array: np.ndarray, targets: list[str], slots: Mapping[str, _Slot], unchanged: bool, widen: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays that an entry of the file makes at its targets, in the layout of the model."""
    places = [slots[target] for target in targets if target in slots]
    if any(place.kernel for place in places) and array.ndim >= 2 and not unchanged:
        array = np.moveaxis(array, (0, 1), (-1, -2))
    ends = np.cumsum([place.type.shape[-1] for place in places if place.type.shape])
    parts = [array] * len(targets)
    if len(targets) == len(ends) > 1 and array.ndim and array.shape[-1] == ends[-1]:
        parts = np.split(array, ends[:-1], axis=-1)
    for target, part in zip(targets, parts, strict=True):
        dtype = _widened(part.dtype, slots[target].type.dtype) if widen and target in slots else part.dtype
        yield target, np.ascontiguousarray(part, dtype)


def _widened(saved: np.dtype, wanted: np.dtype) -> np.dtype:
    """`wanted` for a 16-bit float where that is a longer one, else `saved`."""
    longer = is_float(saved) and is_float(wanted) and saved.itemsize == 2 < wanted.itemsize
    return wanted if longer else saved


def _gathered(own: Mapping[str, Any], slots: Mapping[str, _Slot], found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The parameters of the model: what was found, each in its place, and else its own."""
    result = dict(own)
    for name, array in found.items():
        parameter, index = slots[name].parameter, slots[name].index
        if not index:
            result[parameter] = array
            continue
        if result[parameter] is own[parameter]:
            result[parameter] = np.array(own[parameter])
        result[parameter][index] = array
    return result
