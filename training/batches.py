"""What each step of training sees, planned on the CPU: which utterances, where, and what is to be written.

A plan follows from the seed and the number of its step alone, so a run that was interrupted sees what it would have.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from engine.interface import SAMPLE_RATE
from engine.prompt import AUDIO_TOKEN, build_prompt
from training.configuration import Batches
from training.corpus import ALPHABET, Corpus, Tokens, Written, letters
from training.encoder import audio_tokens

__all__ = ["ALPHABET", "Plan", "Planner", "Steps"]

HOP = SAMPLE_RATE // 100
SHORTEST = SAMPLE_RATE // 4
LENGTHS = (12.0, 21.0)  # seconds of joined clips, beside the longest: batches of like lengths waste less
MOST_JOINED = 14
BARE = " without any punctuation marks."
IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step.

    Attributes:
        tokens, targets: shape = (n_clips, n_tokens); a target is the token that follows, or -100.
        samples: length of each clip.
        audio_start: place of the first audio token, the same in all clips.
        source, length, place, row, speed, gain: of each utterance: where it is in the corpus, how many samples it
            takes, where it goes in which clip, and how.
        letters, letter_counts: of all clips, for the auxiliary loss.
        text_tokens, text_targets: sentences without audio.
    """

    tokens: Tensor
    targets: Tensor
    samples: Tensor
    audio_start: int
    source: Tensor
    length: Tensor
    place: Tensor
    row: Tensor
    speed: Tensor
    gain: Tensor
    letters: Tensor
    letter_counts: Tensor
    text_tokens: Tensor
    text_targets: Tensor


@dataclass(slots=True)
class _Pieces:
    """Utterances that have found their place."""

    source: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)


class Planner(Dataset[Plan]):
    """Plans by the number of their step."""

    def __init__(
        self, corpus: Corpus, sentences: Sequence[str], tokenizer: Any, choices: Batches, *, speed: float, seed: int
    ) -> None:
        """Set up.

        Args:
            sentences: for steps without audio, and for misleading hints.
            speed: largest change, as a part of 1.
        """
        self._corpus, self._sentences, self._tokenizer = corpus, sentences, tokenizer
        self._choices, self._speed, self._seed = choices, speed, seed
        self._written = Written(corpus.texts, tokenizer)
        self._letters = [letters(text) for text in corpus.texts]
        end, pad, audio = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>", AUDIO_TOKEN])
        self._end, self._pad, self._audio = int(end), int(pad), int(audio)
        self._opening = self._encode("<|im_start|>assistant\n")

    def __getitem__(self, step: int) -> Plan:
        chance = np.random.default_rng((self._seed, step))
        joined = chance.random() < self._choices.joined
        seconds, clips = self._joined(chance) if joined else self._single(chance)
        return self._plan(chance, clips, round(seconds * SAMPLE_RATE))

    def _single(self, chance: Generator) -> tuple[float, list[list[int]]]:
        """Utterances of like length, one a clip."""
        drawn = self._corpus.draw(chance, 800)
        drawn = drawn[np.argsort(self._corpus.lengths[drawn], kind="stable")]
        start = int(chance.integers(0, 601))
        drawn = drawn[start : start + 200]
        longest = self._corpus.lengths[drawn].max() / SAMPLE_RATE / (1 - self._speed) + 1.2
        seconds = min(float(longest), self._choices.longest)
        count = max(1, min(len(drawn), int(self._choices.seconds / seconds)))
        return seconds, [[int(each)] for each in drawn[-count:]]

    def _joined(self, chance: Generator) -> tuple[float, list[list[int]]]:
        """Utterances one after the other, up to one of a few lengths."""
        seconds = float(
            chance.choice((*(each for each in LENGTHS if each < self._choices.longest), self._choices.longest))
        )
        room = seconds * SAMPLE_RATE
        clips = []
        for _ in range(max(1, int(self._choices.seconds / seconds))):
            goal = max(5 * SAMPLE_RATE, chance.uniform(0.5, 0.97) * room)
            clip: list[int] = []
            taken = 0.0
            for each in self._corpus.draw(chance, MOST_JOINED):
                needed = self._corpus.lengths[each] / (1 - self._speed) + 0.5 * SAMPLE_RATE
                if taken < goal and taken + needed <= room:
                    clip.append(int(each))
                    taken += self._corpus.lengths[each]
            clips.append(clip)
        return seconds, clips

    def _plan(self, chance: Generator, clips: list[list[int]], room: int) -> Plan:
        pieces = _Pieces()
        samples, sequences, answers, spelled = [], [], [], []
        for row, clip in enumerate(clips):
            bare = bool(chance.random() < self._choices.punctuation_free)
            heard, length = self._place(chance, pieces, row, clip, room)
            samples.append(length)
            frames = torch.tensor(-(-length // HOP))
            said = [self._corpus.said[each] for each in heard]
            written = [self._written.tokens(text, bare=bare, later=index > 0) for index, text in enumerate(said)]
            prompt = self._prompt(chance, said, bare=bare)
            place = int(np.flatnonzero(prompt == self._audio)[0])
            audio = np.full(int(audio_tokens(frames)), self._audio, np.int64)
            question = np.concatenate([prompt[:place], audio, prompt[place + 1 :]])
            sequences.append(np.concatenate([question, *written, [self._end]]))
            answers.append(len(question))
            spaced = [part for text in said for part in (np.array([1]), self._letters[text])][1:]
            spelled.append(np.concatenate([*spaced, np.zeros(0)]).astype(np.int64))
        tokens, targets = self._pad_together(sequences, answers)
        text_tokens, text_targets = self._text_only(chance)
        return Plan(
            tokens=tokens,
            targets=targets,
            samples=torch.tensor(samples),
            audio_start=place,
            source=torch.tensor(pieces.source, dtype=torch.long),
            length=torch.tensor(pieces.length, dtype=torch.long),
            place=torch.tensor(pieces.place, dtype=torch.long),
            row=torch.tensor(pieces.row, dtype=torch.long),
            speed=torch.tensor(pieces.speed, dtype=torch.float32),
            gain=torch.tensor(pieces.gain, dtype=torch.float32),
            letters=torch.from_numpy(np.concatenate(spelled)),
            letter_counts=torch.tensor([len(each) for each in spelled]),
            text_tokens=text_tokens,
            text_targets=text_targets,
        )

    def _place(self, chance: Generator, pieces: _Pieces, row: int, clip: list[int], room: int) -> tuple[list[int], int]:
        """Put utterances into a clip; returns those that fit, and the clip's samples."""
        if chance.random() < self._choices.empty:
            return [], max(SHORTEST, int(chance.uniform(0.3 * SAMPLE_RATE, 0.95 * room)))
        place = int(chance.uniform(0, chance.choice((0.1, 0.5, 1.0))) * SAMPLE_RATE)
        loudness = 10 ** (chance.uniform(-18, 0) / 20)
        tempo = chance.uniform(1 - self._speed, 1 + self._speed)
        heard = []
        for each in clip:
            speed = 1.0 if chance.random() < 0.35 else tempo
            length = int(self._corpus.lengths[each] / speed) - 1
            if place + length > room - HOP:
                break
            pieces.source.append(int(self._corpus.starts[each]))
            pieces.length.append(length)
            pieces.place.append(place)
            pieces.row.append(row)
            pieces.speed.append(speed)
            pieces.gain.append(loudness * 10 ** (chance.uniform(-4, 2) / 20))
            heard.append(each)
            place += length + int(chance.choice((0.0, chance.uniform(0, 0.3), chance.uniform(0.1, 0.8))) * SAMPLE_RATE)
        return heard, max(SHORTEST, min(place + int(chance.uniform(0, 0.6) * SAMPLE_RATE), room))

    def _prompt(self, chance: Generator, said: list[Any], *, bare: bool) -> Tokens:
        """The chat form up to the answer, with one audio token; as `engine.prompt` asks, with variations."""
        language = "en" if chance.random() < 0.8 else None
        context = ""
        if said and chance.random() < self._choices.hints:
            right = chance.random() < 0.5
            text = self._corpus.texts[chance.choice(said)] if right else str(chance.choice(self._sentences))
            words = [word.strip(".,;:?!") for word in text.split()]
            context = text if chance.random() < 0.5 else ", ".join(sorted({w for w in words if len(w) > 5})[:6])
        prompt = build_prompt(language, context)
        return self._encode(prompt.replace("into text.", f"into text{BARE}", 1) if bare else prompt)

    def _text_only(self, chance: Generator) -> tuple[Tensor, Tensor]:
        """Answers without a question: what is likely to be said, without the audio's help."""
        count = min(self._choices.text_only, len(self._sentences))
        drawn = chance.integers(0, len(self._sentences), count)
        written = [self._encode(self._sentences[each]) for each in drawn]
        sequences = [np.concatenate([self._opening, each, [self._end]]) for each in written]
        return self._pad_together(sequences, [len(self._opening)] * count)

    def _pad_together(self, sequences: list[Tokens], answers: list[int]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, sequences), default=0)
        tokens = np.full((len(sequences), longest), self._pad, np.int64)
        targets = np.full((len(sequences), longest), IGNORED, np.int64)
        for row, (sequence, answer) in enumerate(zip(sequences, answers, strict=True)):
            tokens[row, : len(sequence)] = sequence
            targets[row, answer - 1 : len(sequence) - 1] = sequence[answer:]
        return torch.from_numpy(tokens), torch.from_numpy(targets)

    def _encode(self, text: str) -> Tokens:
        return np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)


class Steps(Sampler[int]):
    """The numbers of steps from one on, without end."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __iter__(self) -> Iterator[int]:
        step = self._first
        while True:
            yield step
            step += 1
