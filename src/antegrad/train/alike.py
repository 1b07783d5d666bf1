"""Whether the processes of a training do the same work. Where they do not, they would wait for each other for ever, or
each would train a model of its own; so they compare what they have before they begin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from antegrad import tree
from antegrad.errors import SettingError
from antegrad.ir.program import Program
from antegrad.ir.types import type_of
from antegrad.train.placement import OnDevice

__all__ = [
    "check_alike",
    "check_samples",
    "data_digest",
    "described_samples",
    "digest",
    "program_digest",
    "same_data",
]

ROWS = 64
"""How many rows stand for a data set."""
LISTED = 5
"""The most differences that a message lists; the count is always exact."""
MISSING = "nothing"


def check_alike(place: OnDevice, topic: str, settings: Mapping[str, Any], owner: str = "fit") -> None:
    """Compare JSON values by name with those of the other processes, all of which call it with the same `topic`.

    Raises `SettingError`, the same on all of them, with what differs and which ranks have what.
    """
    told = place.gathered(topic, dict(settings), patient=True)  # one may have to read its data first
    differences = [
        f"{name} is {_by_rank([one.get(name, MISSING) for one in told])}"
        for name in dict.fromkeys(name for one in told for name in one)
        if any(one.get(name, MISSING) != told[0].get(name, MISSING) for one in told)
    ]
    if differences:
        more = f"; and {len(differences) - LISTED} more" if len(differences) > LISTED else ""
        raise SettingError(
            f"{owner}: all processes of a run must do the same, and here {'; '.join(differences[:LISTED])}{more}. "
            "Run the same script with the same arguments, seeds and data everywhere"
        )


def _by_rank(values: list[Any]) -> str:
    """``32 on rank 0, 2 and 16 on rank 1``."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(str(value), []).append(str(rank))
    return " and ".join(f"{value} on rank {', '.join(own)}" for value, own in ranks.items())


def check_samples(place: OnDevice, owner: str, arrays: Any) -> None:
    """Refuse processes that give `owner` other samples: each takes its part of what all of them have."""
    if place.group is not None:
        check_alike(place, owner, described_samples("the data", arrays), owner)


def described_samples(what: str, arrays: Any) -> dict[str, Any]:
    """The number of samples, and what some of them hold."""
    return {f"the size of {what}": len(tree.leaves(arrays)[0]), f"{what} (as a digest)": data_digest(arrays)}


def data_digest(arrays: Any) -> str:
    """The same for data sets some rows of which are the same."""
    return digest(map(some_rows, tree.leaves(arrays)))


def digest(arrays: Iterable[Any]) -> str:
    """The same for arrays with the same types and bits, in their order."""
    found = hashlib.blake2b(digest_size=8)
    for array in map(np.asarray, arrays):
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def program_digest(program: Program) -> str:
    """The same for two programs that compute the same in the same way."""
    return hashlib.sha256(program.stablehlo().encode()).hexdigest()[:16]


def same_data(one: Any, other: Any) -> bool:
    """Whether two pytrees of arrays hold the same samples, as far as some rows tell.

    A quarter of them may differ: what made a loss infinite can have been mended.
    """
    leaves, others = tree.leaves(one), tree.leaves(other)
    if [type_of(leaf) for leaf in leaves] != [type_of(leaf) for leaf in others]:
        return False
    pairs = [(some_rows(a), some_rows(b)) for a, b in zip(leaves, others, strict=True)]
    same = [((a == b) | ((a != a) & (b != b))).reshape(len(a), -1).all(1) for a, b in pairs]
    return bool(np.mean(np.logical_and.reduce(same)) >= 3 / 4)


def some_rows(array: np.ndarray) -> np.ndarray:
    """Some rows of an array, from all of it, so that large data are not read for this."""
    return array[:: max(1, len(array) // ROWS)][: 2 * ROWS]
