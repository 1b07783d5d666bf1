"""Tied arrays: one array under two names is stored once, and the second name is kept in the metadata.

The metadata entry ``antegrad.alias`` is a JSON object from each further name to the name that is stored:
``{"param.head.w": "param.embed.w"}``. After a load both names give the same array object again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from antegrad.checkpoint.header import check_names, parse_object, refuse
from antegrad.errors import CheckpointError

ALIAS_KEY = "antegrad.alias"


def fold(tensors: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """`tensors` without the further names of tied arrays, and those names with the name that is kept, the first.

    Tied is the same object, or all of the same memory seen in the same way. A transposed view is another array.
    """
    kept: dict[str, np.ndarray] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple, str] = {}
    for name, array in tensors.items():
        target = first.setdefault(_identity(array), name)
        if target == name:
            kept[name] = array
        else:
            aliases[name] = target
    return kept, aliases


def _identity(array: np.ndarray) -> tuple:
    """What equals for two views of one array; without elements, or for another array type, the object counts."""
    if isinstance(array, np.ndarray) and array.size:
        return array.ctypes.data, array.shape, array.strides, array.dtype
    return (id(array),)


def refold(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> dict[str, np.ndarray]:
    """`tensors` without the names that `metadata` already records as aliases, for a save of what was loaded.

    Raises `CheckpointError` where the arrays of a recorded pair are no longer one: ties do not come undone by mistake.
    """
    check_names(tensors, metadata)
    kept = dict(tensors)
    for name, target in read_aliases(metadata, "the metadata to save").items():
        if target not in tensors:
            raise CheckpointError(f"cannot save {name!r} as an alias of {target!r}: there is no tensor {target!r}")
        if name in kept and _identity(kept.pop(name)) != _identity(tensors[target]):
            raise CheckpointError(
                f"cannot save {name!r} as an alias of {target!r}: they are two arrays now. "
                f"Make them one array again, or drop {ALIAS_KEY!r} from the metadata to untie them on purpose."
            )
    return kept


def unfold(tensors: dict[str, np.ndarray], metadata: Mapping[str, str], source: str) -> dict[str, np.ndarray]:
    """`tensors` with every alias of `metadata` added, as the same array object. Raises `CheckpointError`."""
    aliases = read_aliases(metadata, source)
    for name, target in aliases.items():
        if name in tensors:
            refuse(source, f"{name!r} is a tensor and also an alias of {target!r}")
        if target not in tensors:
            refuse(source, f"{name!r} is an alias of {target!r}, and the file has no such tensor")
    return tensors | {name: tensors[target] for name, target in aliases.items()}


def write_aliases(aliases: Mapping[str, str]) -> dict[str, str]:
    """The metadata that records `aliases`: one entry, or none."""
    return {ALIAS_KEY: json.dumps(dict(sorted(aliases.items())), ensure_ascii=False)} if aliases else {}


def read_aliases(metadata: Mapping[str, str], source: str) -> dict[str, str]:
    """The aliases that `metadata` records, by name. Raises `CheckpointError` when they cannot be read."""
    aliases = parse_object(metadata.get(ALIAS_KEY, "{}").encode(), f"metadata {ALIAS_KEY!r}", source)
    for name, target in aliases.items():
        if not isinstance(target, str) or target in aliases:
            refuse(
                source, f"metadata {ALIAS_KEY!r} has {target!r} under {name!r}, expected the name of a stored tensor"
            )
    return aliases
