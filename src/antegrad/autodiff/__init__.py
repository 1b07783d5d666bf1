"""Derivatives: reverse mode, forward mode derived from it, and both on Python functions."""

from antegrad.autodiff import control as control
from antegrad.autodiff import custom as custom
from antegrad.autodiff.forward import jvp_program as jvp_program
from antegrad.autodiff.reverse import reverse as reverse
from antegrad.autodiff.reverse import vjp_program as vjp_program
