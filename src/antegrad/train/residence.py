"""Which data lie on the device, and which stay on the host."""

from __future__ import annotations

import logging
from typing import Any

from antegrad import tree
from antegrad.data import DataError
from antegrad.train.placement import OnDevice

logger = logging.getLogger("antegrad")


class Residence:
    """The examples that were put on the devices of `place` last, and whether further ones are to be streamed."""

    def __init__(self, place: OnDevice) -> None:
        self.place = place
        self._held: tuple[list[Any], Any] | None = None
        self._said: set[int] = set()

    def holds(self, arrays: Any) -> bool:
        """Whether `arrays` were the last ones that were placed."""
        leaves, held = tree.leaves(arrays), [] if self._held is None else self._held[0]
        return len(leaves) == len(held) and all(a is b for a, b in zip(leaves, held, strict=True))

    def placed(self, arrays: Any, parts: Any) -> Any:
        """`arrays`, as `parts`, on the device; the last ones stay there, so that a validation set is copied once."""
        if not self.holds(arrays):
            self._held = None  # room for the new ones
            self._held = tree.leaves(arrays), self.place.put_examples(parts)
        assert self._held is not None
        return self._held[1]

    def streams(self, dataset: Any, wanted: bool | None) -> bool:
        """Whether the data stay on the host, as `wanted`; where that is decided here, it is said in one line.

        Raises `DataError` for data that are to lie on the device, and do not fit.
        """
        device = self.place.device
        if wanted or device.handle is None:
            return bool(wanted)
        free = self.place.agreed("free", self.place.free_bytes())
        fits = free is None or dataset.nbytes <= free // 2
        if wanted is False and free is not None and dataset.nbytes > free:
            raise DataError(
                f"the data set has {dataset.nbytes:,} bytes, and {free:,} are free on {device.name}: "
                "pass stream=True (or None) to Trainer to keep it on the host"
            )
        if wanted is None and not fits and dataset.nbytes not in self._said:
            self._said.add(dataset.nbytes)
            logger.warning(
                "the data set (%s bytes) does not fit into half of what is free on %s (%s bytes): it is streamed",
                f"{dataset.nbytes:,}", device.name, f"{free:,}",
            )  # fmt: skip
        return wanted is None and not fits
