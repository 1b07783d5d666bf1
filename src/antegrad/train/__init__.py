"""Training: the step programs of a model, and the trainers that run them over data."""

from antegrad.train import metrics as metrics
from antegrad.train.autoregressive import AutoregressiveTrainer as AutoregressiveTrainer
from antegrad.train.callbacks import BestCheckpoint as BestCheckpoint
from antegrad.train.callbacks import Callback as Callback
from antegrad.train.callbacks import EarlyStopping as EarlyStopping
from antegrad.train.callbacks import LearningRateLog as LearningRateLog
from antegrad.train.epoch import repeat as repeat
from antegrad.train.history import History as History
from antegrad.train.programs import StepPrograms as StepPrograms
from antegrad.train.step import TrainState as TrainState
from antegrad.train.step import TrainStep as TrainStep
from antegrad.train.step import train_step as train_step
from antegrad.train.trainer import Trainer as Trainer
from antegrad.train.writer import best as best
from antegrad.train.writer import latest as latest
