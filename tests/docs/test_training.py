"""The page on training shows what its code prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_code_prints_what_is_shown() -> None:
    ((code, shown),) = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "training.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == shown
