"""Layers, models and initializers. A model is a pytree of arrays that is called."""

from antegrad.nn import initializers as initializers
from antegrad.nn.context import training_call as training_call
from antegrad.nn.layers import Dense as Dense
from antegrad.nn.layers import Function as Function
from antegrad.nn.layers import Sequential as Sequential
from antegrad.nn.module import Module as Module
from antegrad.nn.module import find as find
from antegrad.nn.module import state as state
from antegrad.nn.module import state_paths as state_paths
from antegrad.nn.module import static as static
from antegrad.nn.module import submodules as submodules
from antegrad.ops import relu as relu
from antegrad.ops import sigmoid as sigmoid
from antegrad.ops import tanh as tanh
