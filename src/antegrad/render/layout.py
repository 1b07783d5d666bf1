"""Breaking long lines of printed Python, always inside parentheses."""

from __future__ import annotations

import re
from collections.abc import Sequence

LINE = 116
"""The longest line of parameters, targets, arguments or returned values."""


def listed(head: str, items: Sequence[str], tail: str) -> list[str]:
    """``head item, item tail``, over several lines where it would be too long for one."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= LINE:
        return [line]
    indent = " " * (len(head) - len(head.lstrip()))
    return [head, *filled(", ".join(items) + ",", f"{indent}    "), f"{indent}{tail}"]


def filled(text: str, indent: str) -> list[str]:
    """`text` broken after commas into lines that are as full as `LINE` allows."""
    lines, current = [], indent
    for piece in re.split(r"(?<=,) ", text):
        if len(current) + len(piece) > LINE and current.strip():
            lines.append(current.rstrip())
            current = indent
        current += f"{piece} "
    return [*lines, current.rstrip()]


def broken(code: str) -> list[str]:
    """An assignment as lines, the last of them without its indentation: a comment is still to follow it."""
    target, _, value = code.partition(" = ")
    if len(code) <= LINE or not value.endswith(")"):
        return [code]
    above = []
    # A break between the targets needs parentheses of their own.
    if ", " in target and len(target) + len(value.split(", ")[0]) > LINE - 8:
        above = ["    (", *filled(f"{target},", "        ")]
        code = f") = {value}"
    first, *more = filled(code, "    ")
    more = filled(" ".join(map(str.strip, more)), "        ") if more else []
    lines = [*above, first, *more]
    return [*lines[:-1], lines[-1].removeprefix("    ")]
