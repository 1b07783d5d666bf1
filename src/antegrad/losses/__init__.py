"""Losses: from predictions and targets to a scalar, the mean over all samples by default.

16-bit floats are computed in f32, and the result is f32. Shapes are compared, never broadcast: predictions (8, 1) and
targets (8,) are a `ShapeError`. All of them stay finite, with finite gradients, as far as f32 can hold the true values.

Every loss takes two arguments more:

- ``reduction``: "mean"; "sum"; "none" for the loss of each sample; or "sums" for the pair (sum of losses, sum of what
  they count), two scalars whose quotient is the mean. Pairs of batches, micro-batches or devices are added before the
  division, and the mean is then that of all samples::

      totals = [losses.cross_entropy(model(x), y, reduction="sums") for x, y in batches]
      mean = sum(total for total, _ in totals) / sum(count for _, count in totals)

- ``sample_weights``: a float tensor whose shape is the beginning of that of the losses, such as (batch,) for losses
  (batch, time), converted to their type. Each loss is multiplied by the weight of its sample, and counts so much in the
  mean; an element loss counts with the weight for each element. A sample of weight 0 is not there: what its prediction
  and target hold, NaN and infinities too, changes neither the value nor a gradient. The mean of nothing is 0.

Settings out of their range are a `SettingError`.
"""

from antegrad.losses.classification import LabelError as LabelError
from antegrad.losses.classification import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from antegrad.losses.classification import check_labels as check_labels
from antegrad.losses.classification import cross_entropy as cross_entropy
from antegrad.losses.classification import hinge as hinge
from antegrad.losses.classification import kl_divergence as kl_divergence
from antegrad.losses.classification import sequence_cross_entropy as sequence_cross_entropy
from antegrad.losses.embedding import contrastive as contrastive
from antegrad.losses.embedding import cosine_distance as cosine_distance
from antegrad.losses.embedding import nt_xent as nt_xent
from antegrad.losses.regression import gaussian_nll as gaussian_nll
from antegrad.losses.regression import huber as huber
from antegrad.losses.regression import l1 as l1
from antegrad.losses.regression import mean_squared_error as mean_squared_error
