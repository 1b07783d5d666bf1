"""Names: from ``blocks.3.w`` to a Python identifier, and one name for every value of a Program."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antegrad.ir.program import Program, Value

RESERVED = frozenset({"np", "bfloat16", *keyword.kwlist})


def identifier(name: str) -> str:
    """``x -> x``, ``0.w -> w0``, ``d_0.w -> d_w0``, ``opt.m.0.w -> opt_m_w0``, ``lambda -> lambda_``."""
    if not name.isascii():  # in the form in which Python reads identifiers, without the digits that it takes for none
        normal = unicodedata.normalize("NFKC", name)
        name = "".join(c if c == "." or f"_{c}".isidentifier() else "_" for c in normal)
    adjoint = re.match(r"(d_)*", name)
    prefix = adjoint.group() if adjoint else ""
    stem = re.sub(r"(?:^|(?<=\.))(\d+)\.([A-Za-z_]\w*)$", r"\2\1", name[len(prefix) :])
    stem = re.sub(r"\W+", "_", stem).strip("_") or "value"
    result = prefix + stem
    if not result.isidentifier():
        result = f"v{result}"
    return f"{result}_" if result in RESERVED else result


class Namer:
    """Hands out names that are free: ``h, h_1, h_2`` for one wish, ``t0, t1`` for values that have none."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.taken = set(taken) | RESERVED
        self._next: dict[str, int] = {}

    def name(self, stem: str, numbered: bool = False) -> str:
        """A free identifier from `stem`; `numbered` ones always carry a number, from 0 on."""
        if not numbered and stem not in self.taken:
            self.taken.add(stem)
            return stem
        number = self._next.get(stem, 0 if numbered else 1)
        while (result := f"{stem}{number}" if numbered else f"{stem}_{number}") in self.taken:
            number += 1
        self._next[stem] = number + 1
        self.taken.add(result)
        return result


def assign_names(program: Program, shown: Iterable[Value], taken: Collection[str] = ()) -> dict[Value, str]:
    """A name for every input of `program` and every value in `shown`, by what the values would like to be called."""
    namer = Namer(taken)
    names = {
        value: namer.name(identifier(name)) for value, name in zip(program.inputs, program.input_names, strict=True)
    }
    wishes = dict(zip(program.outputs, program.output_names, strict=True))
    for value in shown:
        if value in names:
            continue
        wish = value.name or wishes.get(value)
        names[value] = namer.name("t", numbered=True) if wish is None else namer.name(identifier(wish))
    return names
