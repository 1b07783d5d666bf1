"""Whether the entries of a file are those that a model expects, and one message for all that are not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from antegrad.errors import CheckpointError
from antegrad.ir.types import TensorType

LISTED = 50
"""The most entries of one kind that a message lists; the count is always exact."""
ADVICE = "Build the model as it was when it was saved, or load the file that was saved from this one."


def check_fit(
    source: str,
    saved: Mapping[str, TensorType],
    model: Mapping[str, TensorType],
    *,
    what: str,
    strict: bool = True,
    advice: str = ADVICE,
) -> list[str]:
    """The names of `model` that `saved` has too, in the order of `model`.

    Raises one `CheckpointError` that lists what is missing from the file, what it has too many, and what differs in
    shape or element type (saved first, model second). Without `strict` only the last kind is refused. `source` names
    the file, `what` the state (``"parameters"``), and `advice` ends the message.
    """
    missing = [name for name in model if name not in saved] if strict else []
    extra = [name for name in saved if name not in model] if strict else []
    common = [name for name in model if name in saved]
    differing = [name for name in common if saved[name] != model[name]]
    if not (missing or extra or differing):
        return common
    hints = _similar_names(missing, extra)
    paragraphs = [
        _paragraph("missing from the file", (f"{name} {model[name]}{hints.get(name, '')}" for name in missing)),
        _paragraph("in the file, not in the model", (f"{name} {saved[name]}" for name in extra)),
        _paragraph("of another shape or type", (_difference(name, saved, model) for name in differing)),
    ]
    raise CheckpointError(f"the {what} in {source} do not fit the model.{''.join(paragraphs)}\n{advice}")


def _difference(name: str, saved: Mapping[str, TensorType], model: Mapping[str, TensorType]) -> str:
    return f"{name} saved {saved[name]}, model {model[name]}"


def _paragraph(title: str, lines: Iterable[str]) -> str:
    """``\\n  title (2): a f32[1]; b f32[2]``, or nothing for no lines."""
    listed = list(lines)
    if not listed:
        return ""
    more = f"; and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return f"\n  {title} ({len(listed)}): {'; '.join(listed[:LISTED])}{more}"


def _similar_names(missing: Sequence[str], extra: Sequence[str]) -> dict[str, str]:
    """For missing names with a near miss among the extra ones, a question; none where the lists are long."""
    if len(missing) > LISTED or len(extra) > LISTED:
        return {}
    close = {name: difflib.get_close_matches(name, extra, 1, 0.75) for name in missing}
    return {name: f" (saved as {found[0]}?)" for name, found in close.items() if found}
