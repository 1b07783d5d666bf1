"""The operations, with NumPy's names and argument order. They run at once on arrays and trace on traced tensors."""

# ruff: noqa: F403, I001  (the order is that of dependence; each module lists its public names in __all__)
from antegrad.ops.tensor import Tensor as Tensor
from antegrad.ops.dispatch import bind as bind
from antegrad.ops.elementwise import *
from antegrad.ops.division import *
from antegrad.ops.transcendental import *
from antegrad.ops.logic import *
from antegrad.ops.bits import *
from antegrad.ops.shape import *
from antegrad.ops.reduce import *
from antegrad.ops.fused import *
from antegrad.ops.arrays import *
from antegrad.ops.creation import *
from antegrad.ops.padding import *
from antegrad.ops.diagonals import *
from antegrad.ops.statistics import *
from antegrad.ops.norms import *
from antegrad.ops.cumulative import *
from antegrad.ops.special import *
from antegrad.ops.floating import *
from antegrad.ops.normal import *
from antegrad.ops.trigonometry import *
from antegrad.ops.logarithm import *
from antegrad.ops.gamma import *
from antegrad.ops.bessel import *
from antegrad.ops.activation import *
from antegrad.ops.linalg import *
from antegrad.ops.einsum import *
from antegrad.ops.index import *
from antegrad.ops.indexing import *
from antegrad.ops.segment import *
from antegrad.ops.sort import *
from antegrad.ops.order import *
from antegrad.ops.control import *
from antegrad.ops.decomposition import *
from antegrad.ops.lu import *
from antegrad.ops.solve import *
from antegrad.ops.call import *
from antegrad.ops.attention import *
from antegrad.ops.convolution import *
from antegrad.ops.conv import *
from antegrad.ops.pooling import *
from antegrad.ops.image import *
from antegrad.ops.threefry import *
from antegrad.ops.collective import *
from antegrad.ops.communication import *
