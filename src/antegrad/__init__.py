"""antegrad trains neural networks with gradients that are written ahead of time, as programs that a person can read."""

from antegrad import checkpoint as checkpoint
from antegrad import flow as flow
from antegrad import losses as losses
from antegrad import nn as nn
from antegrad import ops as ops
from antegrad import optim as optim
from antegrad import random as random
from antegrad import train as train
from antegrad.autodiff.higher import grad as grad
from antegrad.autodiff.higher import jvp as jvp
from antegrad.autodiff.higher import value_and_grad as value_and_grad
from antegrad.autodiff.higher import vjp as vjp
from antegrad.autodiff.reverse import reverse as reverse
from antegrad.capture import capture as capture
from antegrad.errors import AntegradError as AntegradError
from antegrad.errors import CheckpointError as CheckpointError
from antegrad.errors import DeviceError as DeviceError
from antegrad.errors import DTypeError as DTypeError
from antegrad.errors import NameMissing as NameMissing
from antegrad.errors import ProgramError as ProgramError
from antegrad.errors import ShapeError as ShapeError
from antegrad.errors import TraceError as TraceError
from antegrad.flow import cond as cond
from antegrad.flow import fori_loop as fori_loop
from antegrad.flow import scan as scan
from antegrad.flow import switch as switch
from antegrad.flow import while_loop as while_loop
from antegrad.ir.cost import CostReport as CostReport
from antegrad.ir.program import Program as Program
from antegrad.ir.types import TensorType as TensorType
from antegrad.ir.types import spec as spec
from antegrad.ops import stop_gradient as stop_gradient
from antegrad.ops.tensor import Tensor as Tensor
from antegrad.passes.precision import with_precision as with_precision
from antegrad.passes.simplify import simplify as simplify
from antegrad.render.edited import from_python as from_python
from antegrad.runtime.compile import Compiled as Compiled
from antegrad.runtime.compile import compile as compile
from antegrad.runtime.device import default_device as default_device
from antegrad.runtime.device import describe as describe_device
from antegrad.runtime.device import devices as devices
from antegrad.train.step import train_step as train_step

__version__ = "0.1.0"
