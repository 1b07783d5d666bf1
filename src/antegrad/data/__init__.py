"""Data: sets of arrays in memory, known data sets, and texts as tokens.

    train, validation = data.mnist("train").split(55_000, seed=0)
    data.Dataset(images, labels, classes=10)

A known data set comes from the directory that the environment variable ``ANTEGRAD_DATA`` names, where it is there, else
from the user's cache, else from the web, and is checked before it is used. Those in parquet files need the packages of
``pip install antegrad[data]``.
"""

from antegrad.data.augment import Augment as Augment
from antegrad.data.augment import CutMix as CutMix
from antegrad.data.augment import Cutout as Cutout
from antegrad.data.augment import HorizontalFlip as HorizontalFlip
from antegrad.data.augment import MixUp as MixUp
from antegrad.data.augment import Normalize as Normalize
from antegrad.data.augment import RandomCrop as RandomCrop
from antegrad.data.cache import cache_directory as cache_directory
from antegrad.data.cifar import cifar10 as cifar10
from antegrad.data.dataset import Dataset as Dataset
from antegrad.data.dataset import as_dataset as as_dataset
from antegrad.data.download import Source as Source
from antegrad.data.download import fetch as fetch
from antegrad.data.error import DataError as DataError
from antegrad.data.error import PackageMissing as PackageMissing
from antegrad.data.idx import read_idx as read_idx
from antegrad.data.mnist import mnist as mnist
from antegrad.data.pusht import Demonstrations as Demonstrations
from antegrad.data.pusht import pusht as pusht
from antegrad.data.text import text_corpus as text_corpus
from antegrad.data.text import tiny_shakespeare as tiny_shakespeare
from antegrad.data.tokenizer import CharTokenizer as CharTokenizer
from antegrad.data.tokenizer import Tokenizer as Tokenizer
from antegrad.data.tokenizer import as_tokenizer as as_tokenizer
