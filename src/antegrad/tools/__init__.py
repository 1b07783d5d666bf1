"""Tools that a person uses on a program: check a gradient, certify a device, blame a NaN, compare two programs."""

from antegrad.tools.blame import Blame as Blame
from antegrad.tools.blame import blame as blame
from antegrad.tools.certify import Certificate as Certificate
from antegrad.tools.certify import certify as certify
from antegrad.tools.difference import diff as diff
from antegrad.tools.gradient import GradientMismatch as GradientMismatch
from antegrad.tools.gradient import check_gradient as check_gradient
