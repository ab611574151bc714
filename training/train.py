"""`python -m training.train CONFIG`: from packed speech to weights, on one GPU, or a few steps on a CPU.

The state on disk holds weights, moving average, optimizer and progress; the same command goes on from there. What a
step sees follows from its number, so an interruption changes nothing but the time.
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from training.batches import Plan, Planner, Steps
from training.configuration import Configuration, Training, load
from training.corpus import Corpus
from training.distortion import Sound
from training.export import save
from training.model import Network, build, processor
from training.pack import packed, unpack
from training.progress import bar, console
from training.spectrogram import Spectrogram, mask
from training.synthesize import Config, sentences

STATE = "training.pt"
REPORT_STEPS = 200
LEAST_RATE = 0.01  # of the peak, at the end
WORDS_END = 8192  # of the form's vocabulary; markup comes after


@dataclass(slots=True)
class Progress:
    """How far a run is.

    Attributes:
        seconds: of training, without starts and saves.
    """

    step: int = 0
    seconds: float = 0.0

    def part(self, choices: Training) -> float:
        """Of the schedule, from 0 to 1 and beyond: the larger one of steps and time, where both are named."""
        by_steps = self.step / choices.steps if choices.steps else 0.0
        by_time = self.seconds / (60 * choices.minutes) if choices.minutes else 0.0
        return max(by_steps, by_time)


class Trainer:
    """Everything on the device."""

    def __init__(self, configuration: Configuration, corpus: Corpus, device: torch.device, sound: Sound) -> None:
        self.configuration, self.choices, self.device = configuration, configuration.training, device
        self.sound = sound
        form = processor(configuration)
        self.tokenizer, self.spectrogram = form.tokenizer, Spectrogram(form.feature_extractor).to(device)
        self.network = build(configuration).to(device)
        self.average = AveragedModel(
            self.network, multi_avg_fn=get_ema_multi_avg_fn(self.choices.ema), use_buffers=False
        )
        self.optimizer = torch.optim.AdamW(self._groups(), betas=(0.9, 0.98), fused=device.type == "cuda")
        self.progress = Progress()

    def _groups(self) -> list[dict[str, Any]]:
        """The encoder at its own rate, matrices with decay, and the rest."""
        named = [(name, value) for name, value in self.network.named_parameters() if value.requires_grad]
        encoder = [value for name, value in named if "audio_tower." in name and ".proj." not in name]
        rest = [value for name, value in named if "audio_tower." not in name or ".proj." in name]
        decay = self.choices.weight_decay
        groups = [
            {"params": [value for value in rest if value.ndim > 1], "weight_decay": decay, "peak": self.choices.rate},
            {"params": [value for value in rest if value.ndim < 2], "weight_decay": 0.0, "peak": self.choices.rate},
            {"params": encoder, "weight_decay": 0.0, "peak": self.choices.encoder_rate},
        ]
        return [group for group in groups if group["params"]]

    def step(self, plan: Plan) -> dict[str, float | Tensor]:
        """One step of the optimizer; returns the losses."""
        number = self.progress.step
        generator = torch.Generator(self.device).manual_seed(self.configuration.seed * 1_000_003 + number)
        torch.manual_seed(self.configuration.seed * 1_000_003 + number)  # dropout has no generator of its own
        losses = self._losses(plan, generator)
        total: Tensor = sum(
            (weight * losses[name] for name, weight in self._weights().items() if name in losses),
            start=torch.zeros((), device=self.device),
        )
        rate = min(1.0, (number + 1) / self.choices.warm_up_steps) * _cosine(self.progress.part(self.choices))
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        total.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update_parameters(self.network)
        self.progress.step += 1
        return {"total": total.detach(), **{name: value.detach() for name, value in losses.items()}}

    def _weights(self) -> dict[str, float]:
        choices = self.choices
        return {
            "tokens": 1.0,
            "letters": choices.ctc,
            "text": choices.text_weight,
            "distillation": choices.distillation,
        }

    def _losses(self, plan: Plan, generator: torch.Generator) -> dict[str, Tensor]:
        clean = self.sound.clean(plan)
        samples = plan.samples.to(self.device)
        distorted = self.sound.distorted(clean, plan, self.configuration.distortion, generator)
        features, frames = self.spectrogram(distorted, samples)
        masks = self.configuration.spec_augment.model_dump()
        features = mask(features, frames, **masks, generator=generator)
        tokens, targets = plan.tokens.to(self.device), plan.targets.to(self.device)
        losses: dict[str, Tensor] = {}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            states, embeddings, lengths = self.network.audio(features, frames)
            embedded = self.network.embed(self._noisy(tokens, targets, generator), embeddings, lengths)
            final, middle = self.network.decode(embedded)
            losses["tokens"] = self.network.token_loss(final, targets, smoothing=self.choices.label_smoothing)
            if self.choices.ctc:
                heard = middle[:, plan.audio_start : plan.audio_start + embeddings.shape[1]]
                losses["letters"] = self.network.character_loss(
                    heard, lengths, plan.letters.to(self.device), plan.letter_counts.to(self.device)
                )
            if len(plan.text_tokens):
                alone, _ = self.network.decode(self.network.embed(plan.text_tokens.to(self.device)))
                losses["text"] = self.network.token_loss(
                    alone, plan.text_targets.to(self.device), smoothing=self.choices.label_smoothing
                )
            if self.choices.encoder == "distilled":
                taught = self.network.taught(*self.spectrogram(clean, samples))
                own = torch.arange(taught.shape[1], device=self.device) < lengths[:, None]
                losses["distillation"] = functional.mse_loss(states[own].float(), taught[own].float())
        return losses

    def _noisy(self, tokens: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Some of the answer's tokens replaced, half by others of the batch, half by any."""
        answer = torch.zeros_like(tokens, dtype=torch.bool)
        answer[:, 1:] = targets[:, :-1] >= 0

        def chance() -> Tensor:
            return torch.rand(tokens.shape, generator=generator, device=self.device)

        order = torch.randperm(len(tokens), generator=generator, device=self.device)
        anything = (chance() * WORDS_END).long()
        other = torch.where(chance() < 0.5, tokens[order].clamp_max(WORDS_END - 1), anything)
        return torch.where(answer & (chance() < self.choices.token_noise), other, tokens)

    def exported(self) -> Any:
        """The weights that leave: the moving average's, or the last ones."""
        network: Network = self.average.module if self.choices.ema else self.network
        return network.thinker

    def save(self, folder: Path) -> None:
        """Write the state, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{STATE}.partial"
        state = {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.progress.step,
            "seconds": self.progress.seconds,
        }
        torch.save(state, partial)
        partial.replace(folder / STATE)

    def resume(self, folder: Path) -> bool:
        """Go on from a state, where there is one."""
        path = folder / STATE
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(state["step"], state["seconds"])
        return True


def main(config: Config) -> None:
    """Train to the end of the schedule and write the weights for `training.export`."""
    run(load(config))


def run(configuration: Configuration) -> list[dict[str, float]]:
    """Train; returns the losses of each reported step, their weighted sum as "total"."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # planning is spread over processes already
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    unpack(configuration)
    weights: dict[str, float] = {voice.engine: voice.weight for voice in configuration.synthesis.voices}
    corpus = Corpus(packed(configuration), ".opus", weights)
    if device.type == "cuda":
        sound = Sound(corpus, device, configuration.seed)
    else:  # a few steps do not need many noises; threads that wait for each other spin, so one core is left out
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
        sound = Sound(corpus, device, configuration.seed, noises=7, rooms=8, seconds=5.0)
    trainer = Trainer(configuration, corpus, device, sound)
    resumed = trainer.resume(configuration.state)
    console.print(
        f"{corpus.hours:.2f} h, {len(corpus.lengths)} utterances of {len(corpus.texts)} texts; "
        f"{'on from' if resumed else 'from'} step {trainer.progress.step}, on {device}"
    )
    losses = _train(trainer, corpus)
    trainer.save(configuration.state)
    save(configuration, trainer.exported())
    return losses


def _train(trainer: Trainer, corpus: Corpus) -> list[dict[str, float]]:
    configuration, choices, progress = trainer.configuration, trainer.choices, trainer.progress
    training, _ = sentences(configuration)
    planner = Planner(
        corpus,
        [each.text for each in training] or corpus.texts,
        trainer.tokenizer,
        configuration.batches,
        speed=configuration.distortion.speed,
        seed=configuration.seed,
    )
    loader = DataLoader(
        planner,
        batch_size=None,
        sampler=Steps(progress.step),
        num_workers=choices.workers,
        prefetch_factor=6 if choices.workers else None,
    )
    reported: list[dict[str, float]] = []
    saved = begun = time.monotonic()
    before = progress.seconds
    plans = iter(loader)
    with bar("training, %", 100, 100 * progress.part(choices)) as shown:
        done = int(100 * progress.part(choices))
        while progress.part(choices) < 1:
            losses = trainer.step(next(plans))
            progress.seconds = before + time.monotonic() - begun
            last = progress.part(choices) >= 1
            if progress.step % REPORT_STEPS == 1 or (choices.steps is not None and choices.steps <= 50) or last:
                told = {name: round(float(value), 3) for name, value in losses.items()}
                reported.append(told)
                console.print(f"step {progress.step}, {progress.seconds:.0f} s: {told}", soft_wrap=True)
            part = min(100, int(100 * progress.part(choices)))
            shown.advance(part - done, f"step {progress.step}")
            done = part
            if time.monotonic() - saved > 60 * choices.save_minutes:
                paused = time.monotonic()
                trainer.save(configuration.state)
                saved = time.monotonic()
                before -= saved - paused
    del plans  # ends the workers
    return reported


def _cosine(part: float) -> float:
    """From 1 to LEAST_RATE."""
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))


if __name__ == "__main__":
    typer.run(main)
