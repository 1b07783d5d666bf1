"""Training: step programs, and many steps in one dispatch."""

from antegrad.train.epoch import repeat as repeat
from antegrad.train.step import TrainState as TrainState
from antegrad.train.step import TrainStep as TrainStep
from antegrad.train.step import train_step as train_step
