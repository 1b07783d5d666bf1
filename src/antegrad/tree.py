"""Pytrees: nested containers of arrays, by `jax.tree_util`, the one part of jax that the core uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jax import tree_util

from antegrad.errors import ProgramError

LIBRARY = str(Path(tree_util.__file__).parent)
"""The folder whose code stands between a caller of this module and the functions that it passes in."""

Structure: TypeAlias = Any
"""jax's PyTreeDef: what is left of a pytree without its leaves; equal structures compare equal."""


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of `tree` from left to right, and its structure. None is a container without leaves."""
    return tree_util.tree_flatten(tree)


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    return tree_util.tree_unflatten(structure, leaves)


def leaves(tree: Any) -> list[Any]:
    return tree_util.tree_leaves(tree)


def structure(tree: Any) -> Structure:
    return tree_util.tree_structure(tree)


def map(function: Callable, tree: Any, *rest: Any) -> Any:
    """`function` of the corresponding leaves of trees of one structure."""
    return tree_util.tree_map(function, tree, *rest)


def flatten_with_names(tree: Any) -> tuple[list[tuple[str, Any]], Structure]:
    """Like `flatten`, with a dotted path for each leaf: ``blocks.3.w``. A bare leaf has the path ``""``."""
    pairs, treedef = tree_util.tree_flatten_with_path(tree)
    return [(".".join(filter(None, (_part(key) for key in path))), leaf) for path, leaf in pairs], treedef


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of `tree` by dotted path, in order. A `ProgramError` when two leaves have one path."""
    pairs = flatten_with_names(tree)[0]
    named = dict(pairs)
    if len(named) != len(pairs):
        paths = [path for path, _ in pairs]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        found = ", ".join(map(repr, twice))
        raise ProgramError(f"two leaves have the path {found}: a key with a dot reads like two keys")
    return named


def _part(key: Any) -> str:
    """One step of a path. An empty attribute name is left out of the path (see `nn.Module`)."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key).strip(".[]'\"")


def register(cls: type, flatten_with_keys: Callable, unflatten: Callable) -> None:
    """Make `cls` a container; `flatten_with_keys` gives ``([(key, child), ...], static)`` with attribute names."""

    def keyed(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, static = flatten_with_keys(node)
        return [(tree_util.GetAttrKey(name), child) for name, child in children], static

    def plain(node: Any) -> tuple[list[Any], Any]:
        children, static = flatten_with_keys(node)
        return [child for _, child in children], static

    tree_util.register_pytree_with_keys(cls, keyed, unflatten, plain)
