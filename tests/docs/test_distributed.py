"""The page on several devices shows what its code prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")


def printed() -> tuple[str, str]:
    """What the code that builds a step prints, and what the page shows."""
    _, after = PAGE.split("This is the step of ZeRO-2")
    code, shown = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", after, re.DOTALL)[0]
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(compile(code, "distributed.md", "exec"), {"__name__": "__main__"})
    return stream.getvalue().rstrip("\n"), shown.rstrip("\n")


def test_the_code_prints_what_is_shown() -> None:
    found, shown = printed()
    assert found == shown
    assert found.count("reduce_scatter(") == found.count("all_gather(") == found.count("all_reduce(") == 1


def test_the_ranks_of_the_page_run() -> None:
    _, after = PAGE.split("This is the step of ZeRO-2")
    (code, _), *_ = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", after, re.DOTALL)
    (ranks,) = re.findall(r"steps through it:\n\n```python\n(.*?)```", after, re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "distributed.md", "exec"), names)
    exec(compile(ranks, "distributed.md", "exec"), names)
    assert len(names["outputs"]) == 4
