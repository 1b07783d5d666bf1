"""Renderings of a Program: NumPy source, StableHLO text, and the way back from edited source."""

from antegrad.render import python as python
from antegrad.render import stablehlo as stablehlo
