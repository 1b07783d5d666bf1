"""Optimizers as pure `(init, update)` pairs on pytrees, transforms of gradients, and learning-rate schedules.

::

    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(optim.schedules.warmup_cosine(3e-4, 100, 5000), mask=optim.decay_matrices),
        optim.ema(0.999),
    )
    state = optimizer.init(parameters)
    updates, state = optimizer.update(gradients, state, parameters)
    parameters = optim.apply_updates(parameters, updates)
    for_evaluation = optim.averaged(state, parameters)

`groups` gives some parameters another optimizer, and `freeze` keeps some as they are. All of it is written with
`antegrad.ops`: it runs at once on NumPy arrays, and is captured into the step program on traced tensors. Settings that
are Python numbers become constants of that program; one that is out of its range is a `SettingError`.
"""

from antegrad.optim import schedules as schedules
from antegrad.optim.adafactor import adafactor as adafactor
from antegrad.optim.adam import adam as adam
from antegrad.optim.adam import adamw as adamw
from antegrad.optim.decay import add_decayed_weights as add_decayed_weights
from antegrad.optim.decay import decay_matrices as decay_matrices
from antegrad.optim.decay import decay_report as decay_report
from antegrad.optim.ema import averaged as averaged
from antegrad.optim.ema import ema as ema
from antegrad.optim.lion import lion as lion
from antegrad.optim.muon import muon as muon
from antegrad.optim.optimizer import Optimizer as Optimizer
from antegrad.optim.optimizer import apply_updates as apply_updates
from antegrad.optim.optimizer import global_norm as global_norm
from antegrad.optim.partition import freeze as freeze
from antegrad.optim.partition import groups as groups
from antegrad.optim.rmsprop import rmsprop as rmsprop
from antegrad.optim.sgd import sgd as sgd
from antegrad.optim.transforms import chain as chain
from antegrad.optim.transforms import clip_by_global_norm as clip_by_global_norm
from antegrad.optim.transforms import clip_by_value as clip_by_value
