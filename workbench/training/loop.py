"""The training loop that crossbatch and its baselines share.

A step takes its micro-batches from the data, makes each one's memory, adds up gradients of the
loss per predicted token over all micro-batches and processes, and moves the weights once. All
that is random is drawn from (seed, step), or from generators whose state is kept, so that a
training that is interrupted and resumed goes on exactly as if it had not been.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from workbench.core.checks import check_option, whole_number
from workbench.core.errors import InputError, MissingDataError
from workbench.core.replacing import replace_folder
from workbench.training.checkpoints import optimizer_tensors, restore_optimizer
from workbench.training.crossbatch import Probe
from workbench.training.logs import Log
from workbench.training.losses import token_loss
from workbench.training.methods import CrossbatchMethod, Method
from workbench.training.rows import IGNORED, Batch
from workbench.training.schedules import ContextSchedule, Rate

__all__ = ["Data", "Settings", "Trainer"]


class Data(Protocol):
    """Where the rows of a step come from: `DocumentLoader`, `DictionaryData`, ..."""

    @property
    def rows(self) -> int:
        """Documents in one micro-batch."""

    def step(self, suppliers: int = 0, together: int = 1) -> list[Batch]:
        """The micro-batches of the next step."""

    def told(self, accuracy: float) -> bool:
        """Learn how accurate the step was; True when the schedule of d may go on."""

    def state(self) -> dict[str, Any]:
        """What has to be kept, as JSON values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a kept state."""


@dataclass(frozen=True)
class Settings:
    """How to train.

    Parameters
    ----------
    steps : of the whole training; rates are laid out over them.
    rate : learning rate by step.
    optimizer : "adamw" or "adafactor".
    betas, weight_decay : of AdamW; Adafactor takes the weight decay.
    clip : largest norm of the gradient; 0 for no limit.
    log_every : steps between logged rows; a logged step also measures r_d.
    save_every : steps between kept states; 0 for the end only.
    checkpointing : compute each layer twice instead of keeping what it computed.
    precision : "no" or "bf16" (accelerate's mixed precision).
    seed : of links and draws of d.
    """

    steps: int
    rate: Rate
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    log_every: int = 25
    save_every: int = 0
    checkpointing: bool = False
    precision: str = "no"
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number("steps", self.steps, 1)
        whole_number("log_every", self.log_every, 1)
        whole_number("save_every", self.save_every, 0)
        check_option("optimizer", self.optimizer, ("adamw", "adafactor"))
        check_option("precision", self.precision, ("no", "bf16"))


class Trainer:
    """Trains a decoder by a method on data.

    Parameters
    ----------
    decoder : `Decoder` or `PretrainedDecoder`.
    data : where rows come from.
    method : crossbatch or a baseline.
    d : schedule of the number of documents a row sees (crossbatch of the paper's form).
    settings : how to train.
    out : folder for metrics and kept states; None keeps nothing.
    log : see `Log`.
    cpu : stay on the CPU even where there is an accelerator.
    """

    def __init__(
        self,
        decoder: nn.Module,
        data: Data,
        method: Method,
        d: ContextSchedule,
        settings: Settings,
        *,
        out: Path | str | None = None,
        log: str = "auto",
        cpu: bool = False,
    ) -> None:
        from accelerate import Accelerator

        if isinstance(method, CrossbatchMethod) and method.parts is None and d.largest > data.rows:
            raise InputError(
                f"d={d.largest} needs {d.largest} documents in a micro-batch, but there are "
                f"{data.rows}: raise rows (documents), or lower d."
            )
        self.accelerator = Accelerator(cpu=cpu, mixed_precision=settings.precision)
        self.data, self.method, self.d, self.settings = data, method, d, settings
        self.out = None if out is None else Path(out)
        self.log = log
        self.decoder = decoder
        decoder.checkpointing = settings.checkpointing  # type: ignore[assignment]
        parameters = [p for p in decoder.parameters() if p.requires_grad]
        self.model, self.optimizer = self.accelerator.prepare(
            decoder, _optimizer(settings, parameters)
        )
        self.step = 0
        self.rows: list[dict[str, Any]] = []
        self._names = {p: name for name, p in decoder.named_parameters()}

    def train(self, until: int | None = None, *, progress: bool = False) -> list[dict[str, Any]]:
        """Train to the end, or until step `until`; returns the logged rows so far.

        Each row: step, loss (nats per predicted token), accuracy, d, r_d (mean over memory layers,
        heads and predicting queries; NaN without memory), r_d_all (all queries), rate, tokens
        (predicted in this step), seconds since the training began.
        """
        end = self.settings.steps if until is None else min(until, self.settings.steps)
        main = self.accelerator.is_main_process
        log = Log(self.out if main else None, self.log if main else "csv", upto=self.step)
        begun = time.perf_counter()
        attached = getattr(self.decoder, "attached", contextlib.nullcontext)
        self.model.train()
        try:
            with attached(), _bar(self.step, end, progress and main) as bar:
                while self.step < end:
                    logged = self.step % self.settings.log_every == 0 or self.step == end - 1
                    row = self._step(logged)
                    if logged:
                        row["seconds"] = time.perf_counter() - begun
                        self.rows.append(row)
                        log.write(row)
                        bar.set_postfix(
                            loss=f"{row['loss']:.3f}", d=row["d"], r_d=f"{row['r_d']:.3f}"
                        )
                    bar.update()
                    self.step += 1
                    every = self.settings.save_every
                    if self.out is not None and (
                        self.step == end or (every and self.step % every == 0)
                    ):
                        self.save()
        finally:
            log.close()
        return self.rows

    def _step(self, logged: bool) -> dict[str, Any]:
        settings, accelerator = self.settings, self.accelerator
        rate = settings.rate.at(self.step, settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.method.begin(self.step)
        d = self.d.d(self.step, np.random.default_rng((settings.seed, self.step)))
        batches = [
            batch.to(accelerator.device)
            for batch in self.data.step(self.method.suppliers, self.method.together)
        ]
        tokens = self._everyone(sum(batch.n_targets for batch in batches))
        if not tokens:
            raise InputError("no token of this step is predicted; check the documents.")
        weight = getattr(self.method, "contrast", 0.0)
        total, correct, shares = 0.0, 0, []
        for micro, batch in enumerate(batches):
            rng = np.random.default_rng(
                (settings.seed, self.step, micro, accelerator.process_index)
            )
            probe = Probe() if logged else None
            memory = self.method.memory(batch, d, rng, micro=micro, probe=probe)
            last = micro == len(batches) - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.model):
                loss = token_loss(self.model(memory), batch.targets[batch.current])
                value = loss.total * (accelerator.num_processes / tokens)
                if weight and memory.losses:
                    mean = torch.stack(list(memory.losses.values())).mean()
                    value = value + weight * mean / len(batches)
                accelerator.backward(value)
            total += float(loss.total.detach())
            correct += loss.correct
            if probe is not None:
                shares.append(_shares(probe, batch))
        if settings.clip:
            accelerator.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.method.end()
        accuracy = self._everyone(correct) / tokens
        if self.data.told(accuracy):
            self.d.told(accuracy)
        answer, every = (
            (_mean_or_nan(part) for part in zip(*shares)) if shares else (np.nan, np.nan)
        )
        return {
            "step": self.step,
            "loss": self._everyone(total) / tokens,
            "accuracy": accuracy,
            "d": d,
            "r_d": answer,
            "r_d_all": every,
            "rate": rate,
            "tokens": int(tokens),
        }

    def _everyone(self, value: float) -> float:
        """Sum over processes."""
        if self.accelerator.num_processes == 1:
            return value
        here = torch.tensor(float(value), dtype=torch.float64, device=self.accelerator.device)
        return float(self.accelerator.reduce(here, reduction="sum"))

    def save(self) -> Path:
        """Keep the whole state in `out`/state, so that `resume` goes on from it."""
        if self.out is None:
            raise InputError("out is needed to keep a training's state.")
        fresh = self.out / "state.part"
        accelerator = self.accelerator
        if accelerator.is_main_process:
            if fresh.exists():
                shutil.rmtree(fresh)
            fresh.mkdir(parents=True)
            weights = {n: p.detach().cpu().contiguous() for n, p in self._own_weights()}
            save_file(weights, fresh / "weights.safetensors")
            kept = optimizer_tensors(self._inner_optimizer(), self._names)
            save_file(kept, fresh / "optimizer.safetensors")
            about = {"step": self.step, "d": self.d.state(), "settings": asdict(self.settings)}
            (fresh / "training.json").write_text(json.dumps(about), encoding="utf-8")
        accelerator.wait_for_everyone()
        rank = accelerator.process_index
        tensors = {name: t.cpu().contiguous() for name, t in self.method.tensors().items()}
        tensors["rng"] = torch.get_rng_state()
        if accelerator.device.type == "cuda":
            tensors["rng_device"] = torch.cuda.get_rng_state(accelerator.device)
        save_file(tensors, fresh / f"rank{rank}.safetensors")
        text = json.dumps(self.data.state())
        (fresh / f"rank{rank}.json").write_text(text, encoding="utf-8")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            replace_folder(fresh, self.out / "state")
        accelerator.wait_for_everyone()
        return self.out / "state"

    def resume(self, folder: Path | str | None = None) -> int:
        """Go on from a kept state (default: `out`/state); returns its step."""
        if folder is None:
            if self.out is None:
                raise InputError("out or a folder is needed to resume a training.")
            folder = self.out / "state"
        state = Path(folder)
        if not (state / "training.json").is_file():
            raise MissingDataError(f"{state} holds no training to resume.")
        about = json.loads((state / "training.json").read_text(encoding="utf-8"))
        now = json.loads(json.dumps(asdict(self.settings)))
        changed = [k for k, v in about["settings"].items() if k != "save_every" and now[k] != v]
        if changed:
            raise InputError(
                f"the training in {state} had other settings ({', '.join(changed)}); resume with "
                "the same ones, or begin a new training from its weights."
            )
        weights = load_file(state / "weights.safetensors")
        with torch.no_grad():
            for name, parameter in self._own_weights():
                parameter.copy_(weights[name])
        kept = load_file(state / "optimizer.safetensors")
        restore_optimizer(self._inner_optimizer(), self._names, kept)
        rank = self.accelerator.process_index
        tensors = load_file(state / f"rank{rank}.safetensors")
        torch.set_rng_state(tensors.pop("rng"))
        if "rng_device" in tensors:
            torch.cuda.set_rng_state(tensors.pop("rng_device"), self.accelerator.device)
        self.step = int(about["step"])
        self.d.restore(about["d"])
        self.data.restore(json.loads((state / f"rank{rank}.json").read_text(encoding="utf-8")))
        if self.step:
            self.method.begin(self.step - 1)
        self.method.restore({k: v.to(self.accelerator.device) for k, v in tensors.items()})
        return self.step

    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.decoder.named_parameters()

    def _inner_optimizer(self) -> torch.optim.Optimizer:
        inner: torch.optim.Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return inner


def _optimizer(settings: Settings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(
            parameters, lr=settings.rate.peak, weight_decay=settings.weight_decay
        )
    return torch.optim.AdamW(
        parameters,
        lr=settings.rate.peak,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )


def _shares(probe: Probe, batch: Batch) -> tuple[float, float]:
    """Mean r_d of predicting queries and of all, over layers and heads; NaN without memory."""
    predicting = (batch.targets[batch.current] != IGNORED)[:, None]
    valid = batch.valid[batch.current][:, None]
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for layer, everything in probe.all.items():
        seen = (probe.own[layer] > 0).any(dim=-1, keepdim=True).any(dim=1, keepdim=True)
        ratio = probe.own[layer] / everything
        for part, queries in zip(found, (predicting, valid)):
            part.append(ratio[(queries & seen).expand_as(ratio)])
    values = [torch.cat(part) if part else torch.zeros(0) for part in found]
    return tuple(float(v.mean()) if len(v) else float("nan") for v in values)  # type: ignore[return-value]


def _mean_or_nan(values: tuple[float, ...]) -> float:
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else float("nan")


def _bar(start: int, end: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=end, initial=start, disable=not shown, unit="step")
