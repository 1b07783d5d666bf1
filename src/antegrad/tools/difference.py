"""`diff`: what changed between two programs, as a person would mark it."""

from __future__ import annotations

import difflib

from antegrad.ir.program import Program


def diff(before: Program, after: Program, context: int = 2) -> str:
    """The lines of NumPy text that differ, with ``-`` and ``+`` in front and `context` lines around them.

    Types, layers and places at the ends of lines are left out, so that only a changed computation counts as a change.
    The empty text means that both programs compute the same in the same way.
    """
    old, new = _lines(before), _lines(after)
    marked = difflib.unified_diff(old, new, before.name, after.name, lineterm="", n=context)
    return "\n".join(marked)


def _lines(program: Program) -> list[str]:
    """The body of the printed text without comments at line ends, docstrings and imports."""
    lines, quoted = [], False
    for line in program.python().splitlines():
        quoted ^= line.count('"""') % 2 == 1
        code = line.split("  # ")[0].rstrip()
        if code and not quoted and '"""' not in line and not code.startswith(("import ", "from ")):
            lines.append(code)
    return lines
