"""The processes of a training, as its parts need them: to agree, to save together, and to say who is lost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from antegrad.parallel import processes
from antegrad.parallel.watch import PeerError, Watch

PATIENCE = 24 * 3600.0
"""Seconds for which processes wait for one that writes a checkpoint or reads its data; one that is lost is noticed
long before."""
NEWS = 5.0
"""Seconds in which the news of a lost process follows the collective that it broke."""


class Group:
    """The processes of this run; it is made after `processes.initialize` has found that there are several.

    `timeout` is how long, in seconds, they wait for each other in `gather`; None for the timeout of the run.
    """

    def __init__(self, timeout: float | None = None) -> None:
        watch = processes.watch()
        assert watch is not None
        self.watch: Watch = watch
        self.timeout = timeout

    @property
    def index(self) -> int:
        return self.watch.index

    @property
    def count(self) -> int:
        return self.watch.count

    def gather(self, topic: str, value: Any) -> list[Any]:
        """`value`, which JSON must have, from each process, by rank; `PeerError` where one is lost."""
        return self.watch.gather(topic, value, timeout=self.timeout)

    def progress(self, dispatch: int) -> None:
        """Said before each dispatch: who begins fewer of them than the others, and no more, hangs."""
        self.watch.progress(dispatch)

    def busy(self) -> AbstractContextManager[None]:
        """Within the block the others may have to wait for this process, as where it compiles longer than they."""
        return self.watch.busy()

    def explained(self, error: Exception) -> Exception:
        """`PeerError` where a lost process is behind `error`, which came out of a dispatch; else `error` itself."""
        if isinstance(error, PeerError):
            return error
        verdict = self.watch.verdict(NEWS)
        return error if verdict is None else PeerError(verdict)
