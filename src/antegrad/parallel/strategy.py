"""What is divided among the ranks of a data-parallel training: nothing but the batch, or with ZeRO also the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad.errors import SettingError
from antegrad.parallel.mesh import mesh as default_mesh
from antegrad.runtime.mesh import Mesh

BUCKET_BYTES = 25 * 2**20
"""As in PyTorch's DistributedDataParallel: large enough that a collective is limited by bandwidth, not by latency."""


@dataclass(frozen=True)
class Strategy:
    """How a training is divided among the ranks of `mesh`; made by `ddp` and `zero`.

    `level` is 0 for DDP, else that of ZeRO. Source: Rajbhandari et al., "ZeRO: memory optimizations toward training
    trillion parameter models" (2020).
    """

    level: int
    mesh: Mesh
    bucket_bytes: int = BUCKET_BYTES
    sync_batch_norm: bool = False

    @property
    def name(self) -> str:
        return f"ZeRO-{self.level}" if self.level else "DDP"

    @property
    def shards(self) -> int:
        """The level that there is something to divide for: 0 where there is one rank."""
        return self.level if self.mesh.size > 1 else 0


def ddp(
    mesh: Mesh | None = None, *, bucket_bytes: int = BUCKET_BYTES, sync_batch_norm: bool = False
) -> Strategy:
    """Data parallel: every rank holds the whole state and works on its part of each batch; gradients are summed.

    Arguments:
      mesh: the ranks (see `mesh`); by default all devices of the best platform.
      bucket_bytes: gradients travel in buckets of at most so many bytes, each as soon as the backward pass has made
        it. A gradient that is larger travels alone.
      sync_batch_norm: whether `nn.BatchNorm` normalizes by the statistics of the whole batch. Without it each rank
        uses those of its own part, as in PyTorch, so that results depend on the number of ranks; the running
        statistics are the mean over the ranks either way.
    Raises `SettingError` for settings that make no sense.
    """
    return _checked("ddp", 0, mesh, bucket_bytes, sync_batch_norm)


def zero(
    level: int, mesh: Mesh | None = None, *, bucket_bytes: int = BUCKET_BYTES, sync_batch_norm: bool = False
) -> Strategy:
    """Data parallel with a divided state: each rank keeps and updates one shard of it.

    Arguments:
      level: 1 divides the state of the optimizer, 2 also the gradients, 3 also the parameters, which are then gathered
        in buckets before they are used, in the forward and in the backward pass.
      Others as for `ddp`.
    Raises `SettingError` for settings that make no sense.
    """
    if not isinstance(level, (int, np.integer)) or isinstance(level, bool) or level not in (1, 2, 3):
        raise SettingError(f"zero: level must be 1, 2 or 3, found {level!r}; without division of the state use ddp()")
    return _checked("zero", int(level), mesh, bucket_bytes, sync_batch_norm)


NAMES = ("ddp", "zero1", "zero2", "zero3")


def strategy(name: str, mesh: Mesh | None = None, **settings: Any) -> Strategy:
    """`ddp` or `zero` by name, for command lines: ``"ddp"``, ``"zero1"``, ``"zero2"`` or ``"zero3"``.

    Other arguments as for `ddp`. Raises `SettingError` for another name.
    """
    if name not in NAMES:
        raise SettingError(f"strategy: one of {', '.join(NAMES)} is needed, found {name!r}")
    return ddp(mesh, **settings) if name == "ddp" else zero(int(name[-1]), mesh, **settings)


def check_bucket_bytes(owner: str, found: Any) -> None:
    """A `SettingError` that names `owner`, unless `found` is a size of buckets."""
    if isinstance(found, bool) or not isinstance(found, (int, np.integer)) or found < 1:
        raise SettingError(f"{owner}: bucket_bytes must be a whole number of at least 1, found {found!r}")


def _checked(what: str, level: int, mesh: Mesh | None, bucket_bytes: int, sync_batch_norm: bool) -> Strategy:
    if mesh is not None and not isinstance(mesh, Mesh):
        raise SettingError(f"{what}: mesh must be what parallel.mesh gives, found {type(mesh).__name__}")
    check_bucket_bytes(what, bucket_bytes)
    if not isinstance(sync_batch_norm, bool):
        raise SettingError(f"{what}: sync_batch_norm must be True or False, found {sync_batch_norm!r}")
    return Strategy(level, default_mesh() if mesh is None else mesh, int(bucket_bytes), sync_batch_norm)
