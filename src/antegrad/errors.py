"""The exceptions that antegrad raises on purpose. Every message says what was asked, found and expected."""

from __future__ import annotations


class AntegradError(Exception):
    """Base of every error that antegrad raises on purpose."""


class ShapeError(AntegradError, ValueError):
    """Shapes that do not fit; the message has the layer path, the full shapes and the user's line."""


class DTypeError(AntegradError, TypeError):
    """Element types that do not fit, or a promotion that would lose bits."""


class SettingError(AntegradError, ValueError):
    """A setting of the wrong kind or out of range; the message has its name, the value and the range."""


class TraceError(AntegradError, TypeError):
    """A traced tensor used as if it had a value, or used outside the capture that made it."""


class ProgramError(AntegradError):
    """A Program that breaks its own rules, found by the checker."""


class RuleMissing(AntegradError, NotImplementedError):
    """A primitive without the rule that a transformation asks for; the message says which and how to add it."""


class DeviceError(AntegradError, RuntimeError):
    """A device that is unknown, or not to be had on this machine."""


class NonFiniteError(AntegradError, FloatingPointError):
    """A result that is NaN or infinite; the message names the equation that made it first, and the user's line."""


class CheckpointError(AntegradError, ValueError):
    """A file that cannot be trusted or does not fit; the message names file, tensor and numbers."""


class NameMissing(AntegradError, KeyError):
    """A name that a Program, a model or a checkpoint does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
