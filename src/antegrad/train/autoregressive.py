"""`AutoregressiveTrainer`: training a language model on windows of one long text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from antegrad import losses, optim, random, tree
from antegrad.data import Dataset
from antegrad.errors import DTypeError, SettingError, ShapeError
from antegrad.ir.types import is_integer, spec, type_of
from antegrad.ops.dispatch import as_array
from antegrad.optim.settings import whole
from antegrad.runtime.memory import fetch
from antegrad.train.alike import check_samples
from antegrad.train.callbacks import Callback
from antegrad.train.checks import named
from antegrad.train.evaluation import evaluate_dataset
from antegrad.train.feeds import Feed, WindowFeed
from antegrad.train.fitting import Fit
from antegrad.train.generation import Sampler, generation_program
from antegrad.train.history import History
from antegrad.train.metrics import accuracy
from antegrad.train.trainer import Trainer


class AutoregressiveTrainer(Trainer):
    """Trains a model of the next token: ``model(i32[batch,context])`` gives logits ``[batch,context,vocabulary]``.

        model = nn.models.GPT(config, key=random.key(0))
        trainer = train.AutoregressiveTrainer(model, optim.adamw(schedule), context=64, batch_size=12)
        trainer.fit(tokens, 2000, eval_every=250, validation=held_out)
        print(tokenizer.decode(trainer.generate(tokenizer.encode("\\n"), 500)))

    The text lies on the device. Where row r of step s begins is drawn from (seed, s, r) there, so there is no epoch.

    Arguments:
      context: tokens of a window.
      device_batches: False makes the same windows on the host.
      Others as for `Trainer`.
    """

    def __init__(
        self,
        model: Any,
        optimizer: optim.Optimizer,
        *,
        context: int,
        batch_size: int,
        loss: Callable[..., Any] = losses.cross_entropy,
        device_batches: bool = True,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        **settings: Any,
    ) -> None:
        refused = sorted({"augment", "shuffle", "stream"}.intersection(settings))
        if refused:
            raise SettingError(f"AutoregressiveTrainer takes no {', '.join(refused)}: windows are drawn at random")
        settings_of_both = {"batch_size": batch_size, "metrics": metrics, "stream": not device_batches}
        super().__init__(model, loss, optimizer, **settings_of_both, **settings)
        self.context = whole("AutoregressiveTrainer", "context", context, 1)

    def fit(  # pyright: ignore[reportIncompatibleMethodOverride]  (steps instead of epochs)
        self,
        tokens: Any,
        steps: int,
        *,
        eval_every: int | None = None,
        validation: Any = None,
        val_windows: int | None = None,
        run: str | Path | None = None,
        resume: Literal["latest"] | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_every: int | None = None,
        keep: int = 3,
        verbose: bool = True,
    ) -> History:
        """Train on `tokens` (integers, one axis) until `steps` steps are done, those of a resumed run included.

        Every `eval_every` steps (by default a tenth of them) and at the end there is a record, with the loss on the
        first `val_windows` windows of the text `validation` (all of them if None). Others as for `Trainer.fit`.
        """
        every = eval_every if eval_every is not None else max(1, whole("fit", "steps", steps, 1) // 10)
        if val_windows is not None and validation is None:
            raise SettingError(f"fit: val_windows={val_windows!r} needs validation=..., the text that they are of")
        text = self._text(tokens, "tokens")
        windows = None if validation is None else self._windows(validation, val_windows, "fit", "val_windows")
        return Fit(
            self, text, windows, steps, every=every, run=run, resume=resume, callbacks=callbacks,
            checkpoint_every=checkpoint_every, keep=keep, verbose=verbose,
        ).run()  # fmt: skip

    def train_epoch(self, train: Any) -> dict[str, Any]:
        """Refused: there is no epoch."""
        raise SettingError("AutoregressiveTrainer has no epochs: call fit(tokens, steps)")

    def val_loss(self, tokens: Any, windows: int | None = None) -> float:
        """The mean loss over the windows of `tokens` that stand one after the other, or the first `windows` of them."""
        return evaluate_dataset(self, self._compared(tokens, windows, "val_loss"))["loss"]

    def val_top1(self, tokens: Any, windows: int | None = None) -> float:
        """How often the most likely token is the right one, over the same windows."""
        dataset = self._compared(tokens, windows, "val_top1")
        return evaluate_dataset(self, dataset, {"top1": accuracy})["top1"]

    def generate(
        self,
        prompt: Any,
        tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> np.ndarray:
        """`tokens` new tokens (i32[tokens]) after one `prompt` (integers), chosen as `Sampler` says from `seed`.

        One program with a key-value cache; the model needs ``init_cache`` and ``step``, as `nn.models.GPT` has.
        """
        if not hasattr(self.objective.model, "step") or not hasattr(self.objective.model, "init_cache"):
            kind = type(self.objective.model).__name__
            raise SettingError(f"generate: {kind} has no step and init_cache, which the key-value cache needs")
        flat = _one_prompt(prompt)
        if not flat.size or whole("generate", "tokens", tokens, 0) < 1:
            raise ShapeError(f"generate needs a prompt and at least one new token, found {flat.size} and {tokens}")
        given = self._in_vocabulary(flat, "prompt").astype(np.int32)[None]
        sampler = Sampler(temperature, top_k, top_p)
        key = "generate", given.shape, tokens, sampler

        def compiled() -> Any:
            program = generation_program(self.objective.model, self.context, given.shape[1], tokens, sampler)
            return self.compiled(program)

        run, drawn = self.cached(key, compiled), np.asarray(random.key(whole("generate", "seed", seed, 0)))
        return fetch(run(*tree.leaves(self.device_model), given, drawn))[0]

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "context": self.context}

    def _arrays(self, dataset: Any) -> Any:
        return dataset

    def _feed(self, dataset: Any) -> Feed:
        return self.place.feed(WindowFeed(len(dataset), self.context, self.batch_size), len(dataset))

    def _batch_types(self, arrays: Any) -> tuple[Any, Any]:
        tokens = spec((self.batch_size, self.context), "i32")
        return tokens, tokens

    def _text(self, tokens: Any, name: str) -> np.ndarray:
        """`tokens` as one array of integers, u16 where it fits, else i32, long enough for a window."""
        array = self._in_vocabulary(tokens, name)
        if len(array) <= self.context:
            raise ShapeError(f"{name}: a window needs {self.context + 1} tokens, found {len(array)}")
        return array

    def _in_vocabulary(self, tokens: Any, name: str) -> np.ndarray:
        with named(f"{name}, which must be tokens"):
            array = as_array(tokens)
        if array.ndim != 1 or not is_integer(array.dtype):
            raise DTypeError(f"{name}: integers along one axis are needed, found {type_of(array)}")
        vocabulary = self.cached("vocabulary", self._vocabulary)
        wrong = (array < 0) | (array >= vocabulary)
        if wrong.any():
            place = int(np.argmax(wrong))
            raise losses.LabelError(
                f"{name}[{place}] is {array[place]}, and the model has a vocabulary of {vocabulary}; "
                f"{int(wrong.sum())} of {len(array)} tokens are not in it"
            )
        return array.astype(np.uint16 if vocabulary <= 2**16 else np.int32, copy=False)

    def _vocabulary(self) -> int:
        """How many tokens the model knows."""
        return self.objective.prediction(spec((1, self.context), "i32")).output_types[0].shape[-1]

    def _compared(self, tokens: Any, windows: int | None, owner: str) -> Dataset:
        """Windows that all processes have."""
        dataset = self._windows(tokens, windows, owner)
        check_samples(self.place, owner, dataset.arrays)
        return dataset

    def _windows(self, tokens: Any, count: int | None, owner: str, setting: str = "windows") -> Dataset:
        """The windows of a text that stand one after the other, as a data set."""
        array = self._text(tokens, "validation")
        most = (len(array) - 1) // self.context
        count = most if count is None else whole(owner, setting, count, 1)
        if count > most:
            raise ShapeError(f"validation: {len(array)} tokens have {most} windows of {self.context}, not {count}")
        places = np.arange(count)[:, None] * self.context + np.arange(self.context + 1)
        windows = array[places].astype(np.int32)
        return Dataset(windows[:, :-1], windows[:, 1:])


def _one_prompt(prompt: Any) -> np.ndarray:
    """`prompt` along one axis; a `ShapeError` where it has several rows."""
    with named("prompt, which must be tokens"):
        array = as_array(prompt)
    if array.shape[-1:] not in ((), (array.size,)):
        raise ShapeError(
            f"generate takes one prompt, tokens along one axis, found {type_of(array)}: call it for each row"
        )
    return array.reshape(-1)
