"""Random numbers from keys, which are values: the same key always draws the same numbers, on every device.

A key is u32[2]. What draws takes a key and never changes it, so a key is used once; `split` and `fold_in` make more.

>>> from antegrad import random
>>> first, second = random.split(random.key(0))
>>> random.uniform(first, (3,))
array([0.8423141 , 0.18237865, 0.2271781 ], dtype=float32)

The numbers are those of `jax.random` in its default mode (Threefry-2x32, partitionable), bit for bit; where the last
bits can differ, the function says so. A key that is an array gives arrays at once; a traced key, or a concrete key
inside a captured function, gives traced tensors.
"""

from antegrad.random.distributions import categorical as categorical
from antegrad.random.distributions import cauchy as cauchy
from antegrad.random.distributions import exponential as exponential
from antegrad.random.distributions import gumbel as gumbel
from antegrad.random.distributions import laplace as laplace
from antegrad.random.distributions import normal as normal
from antegrad.random.distributions import truncated_normal as truncated_normal
from antegrad.random.draws import bernoulli as bernoulli
from antegrad.random.draws import bits as bits
from antegrad.random.draws import randint as randint
from antegrad.random.draws import uniform as uniform
from antegrad.random.gamma import chisquare as chisquare
from antegrad.random.gamma import gamma as gamma
from antegrad.random.gamma import loggamma as loggamma
from antegrad.random.keys import fold_in as fold_in
from antegrad.random.keys import fold_in_each as fold_in_each
from antegrad.random.keys import key as key
from antegrad.random.keys import split as split
from antegrad.random.order import choice as choice
from antegrad.random.order import epoch_permutation as epoch_permutation
from antegrad.random.order import permutation as permutation
