"""How processes that save together agree: each phase of the work ends with a gather that carries errors to all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antegrad.checkpoint.shards import uncovered
from antegrad.errors import CheckpointError

__all__ = ["Agreement", "Group", "SetPlan", "set_plan"]


class Group(Protocol):
    """The processes that save together, as one of them sees them."""

    @property
    def index(self) -> int:
        """The number of this process, from 0 on."""
        ...

    @property
    def count(self) -> int:
        """How many processes there are."""
        ...

    def gather(self, topic: str, value: Any) -> list[Any]:
        """The JSON values of all processes, in their order, once each of them has called with this topic.

        It is called from the thread of the writer, or from the one that saves, never from both at once. All processes
        call it with the same topics in the same order; a second writer begins with the same topics again. It raises
        when another process is lost, and waits for one that lives: writing may take one of them minutes longer.
        """
        ...


class Agreement:
    """Work in phases on all processes of a group; without a group, or with one process, plain calls."""

    def __init__(self, group: Group | None) -> None:
        self._group = None if group is None or group.count == 1 else group
        self.index, self.count = (0, 1) if self._group is None else (self._group.index, self._group.count)
        self._phases = itertools.count()

    def on_all(self, topic: str, work: Callable[[], Any] | None) -> list[Any]:
        """The JSON value that `work` gives on each process, None where there is none to do.

        Where it raises on one of them, all raise a `CheckpointError` that names the process; alone, its own error.
        """
        if self._group is None:
            return [None if work is None else work()]
        value, error = None, None
        try:
            value = None if work is None else work()
        except Exception as raised:
            error = raised
        reason = None if error is None else str(error) if isinstance(error, CheckpointError) else repr(error)
        try:
            told = self._group.gather(f"checkpoint {next(self._phases)} {topic}", {"value": value, "error": reason})
        except Exception as lost:
            here = f"; here: {reason}" if reason else ""
            problem = f"process {self.index} of {self.count} lost the others at {topic!r}: {lost}{here}"
            raise CheckpointError(problem) from (error or lost)
        failed = [f"process {at} of {len(told)}: {one['error']}" for at, one in enumerate(told) if one["error"]]
        if failed:
            raise CheckpointError(f"{'; '.join(failed)} (processes count from 0)") from error
        return [one["value"] for one in told]


@dataclass(frozen=True)
class SetPlan:
    """What all processes have agreed on for one set: its token, and the file and the ranks of each process."""

    token: str
    names: list[str]
    ranges: list[tuple[int, int]]


def set_plan(told: Sequence[dict[str, Any]]) -> SetPlan | None:
    """The set to write by what the processes told of their jobs; None where nothing is sharded.

    Raises `CheckpointError`, the same on all of them, where they do not bring pieces of one checkpoint.
    """
    for number, one in enumerate(told):
        if one["step"] != told[0]["step"]:
            raise CheckpointError(
                f"process {number} saves step {one['step']}, and process 0 step {told[0]['step']}: "
                "all processes must save the same steps"
            )
        if one["layout"] != told[0]["layout"]:
            raise CheckpointError(
                f"process {number} has other sharded arrays than process 0: "
                "all processes must name the same ones, with the same full types and number of ranks"
            )
    if told[0]["layout"] is None:
        return None
    ranges = [(one["first"], one["count"]) for one in told]
    if problem := uncovered(ranges, told[0]["ranks"]):
        raise CheckpointError(f"the pieces of all processes do not make whole arrays: {problem}")
    return SetPlan(told[0]["token"], told[0]["names"], ranges)
