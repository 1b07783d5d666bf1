"""What loading data raises."""

from __future__ import annotations

from antegrad.errors import AntegradError

__all__ = ["DataError", "PackageMissing"]


class DataError(AntegradError, ValueError):
    """Data that cannot be trusted or does not fit; the message names file or field, what was expected and found."""


class PackageMissing(AntegradError, ImportError):
    """A package that is needed for a purpose and is not installed; the message says how to install it.

    Args:
      extra: the extra of antegrad that brings the package.
    """

    def __init__(self, package: str, purpose: str, extra: str = "data") -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install antegrad[{extra}]", name=package)
