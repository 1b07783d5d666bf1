from antegrad import ops
from antegrad.capture import capture
from antegrad.ir.types import spec
from antegrad.runtime import host
from antegrad.render.python import python
from antegrad.render.stablehlo import stablehlo
from antegrad.autodiff.reverse import reverse
