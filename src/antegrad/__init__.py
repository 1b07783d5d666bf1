from antegrad import ops
from antegrad.capture import capture
from antegrad.ir.types import spec
import antegrad.render.python, antegrad.render.stablehlo
from antegrad.runtime import host
from antegrad.autodiff import control as _c
from antegrad.autodiff.reverse import reverse
from antegrad.autodiff.higher import *
from antegrad.flow import *
