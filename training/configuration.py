"""One TOML file describes a run: where its words and voices come from, what is trained on them, and how."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmarks.packages import Package
from engine.config import MODELS

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """A table of the file: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TextSource(Section):
    """Sentences of one package, or made from templates.

    Attributes:
        form: how its files are read; see `training.texts`.
        files: pattern of the files in the package.
        most: sentences that are taken, drawn at random; all when None.
        licence, attribution: for the model card. Texts are spoken, never shipped.
    """

    name: str
    form: Literal["wordnet", "lines", "prose", "yaml", "templates"]
    package: Package | None = None
    files: str = "**/*"
    most: Count | None = None
    licence: str
    attribution: str


class Voice(Section):
    """A synthesizer and its share of the hours.

    Attributes:
        engine: `flite` and `espeak` are programs of Debian, `kokoro` runs from packages with onnxruntime, and `clips`
            takes the demo clips with their own words in the place of a synthesizer, where none is installed.
        voices: of the engine; all when empty.
        held_out: of those, kept for evaluation.
        hours: of speech to make.
        weight: how often its utterances are drawn in training; 1 is once for each.
    """

    engine: Literal["flite", "espeak", "kokoro", "clips"]
    voices: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    hours: Positive
    weight: Positive = 1.0
    licence: str
    attribution: str


class Synthesis(Section):
    """Speech.

    Attributes:
        held_out: sentences kept for evaluation.
        shard_minutes: of audio in one file, which is made whole or not at all.
    """

    texts: tuple[TextSource, ...]
    voices: tuple[Voice, ...]
    held_out: Annotated[int, Field(ge=0)] = 400
    shard_minutes: Positive = 10.0


class Augmentation(Section):
    """What FFmpeg does to some of the speech, before it is packed.

    Attributes:
        share: of the shards that get a second, coded form.
        codecs: names of `training.codecs`, drawn evenly.
    """

    share: Share = 0.2
    codecs: tuple[str, ...] = ("mulaw", "amr", "opus-12", "mp3-24")


class Packing(Section):
    """What travels to the GPU.

    Attributes:
        kilobits: a second, of Opus.
        part_mib: largest part.
    """

    kilobits: Positive = 24.0
    part_mib: Positive = 56.0


class Start(Section):
    """What training starts from.

    Attributes:
        form: folder whose config, tokenizer and processor the result has.
        encoder: "form" keeps the folder's encoder, "whisper" takes Whisper tiny.en's own from its package.
        decoder: "form" goes on from the folder's decoder, "random" begins anew; embeddings are kept either way.
        n_window: half an attention window of the encoder in mel frames (10 ms); the folder's when None.
    """

    form: Path = MODELS / "omni-tiny-en"
    encoder: Literal["form", "whisper"] = "form"
    decoder: Literal["form", "random"] = "form"
    n_window: Annotated[int, Field(gt=0, multiple_of=2)] | None = None


class Distortion(Section):
    """What happens to the sound of each batch, on the device; shares are of the clips.

    Attributes:
        rooms: convolved with a decaying noise, as late echoes are (Habets 2006 without its early part).
        telephone: band of 300-3400 Hz.
        bands: other upper limits, 3.3-7.5 kHz.
        noise: a second sound, from 3 dB below the speech.
        babble: another clip of the batch, 14-28 dB below.
        mulaw: companded to 8 bits.
        clipping: cut at a part of the peak.
        speed: largest change of tempo and pitch together.
    """

    rooms: Share = 0.3
    telephone: Share = 0.2
    bands: Share = 0.2
    noise: Share = 0.6
    babble: Share = 0.08
    mulaw: Share = 0.12
    clipping: Share = 0.05
    speed: Annotated[float, Field(ge=0, le=0.3)] = 0.12


class SpecAugment(Section):
    """Masks over the mel spectrogram (Park et al. 2019).

    Attributes:
        time_masks, frequency_masks: of each clip, at most.
        time_frames, frequency_bins: width of one, at most.
    """

    time_masks: Annotated[int, Field(ge=0)] = 2
    time_frames: Count = 22
    frequency_masks: Annotated[int, Field(ge=0)] = 2
    frequency_bins: Count = 14


class Batches(Section):
    """What one step sees.

    Attributes:
        seconds: of audio.
        joined: share of batches of clips joined from several utterances, to lengths of 5 to `longest` seconds.
        empty: share of clips without speech, with nothing to write.
        hints: share with a context of words, right or wrong.
        punctuation_free: share asked for without punctuation.
        text_only: sentences without audio in each step, for the decoder as a language model; 0 for none.
    """

    seconds: Positive = 900.0
    joined: Share = 0.66
    longest: Annotated[float, Field(ge=5, le=30)] = 29.8
    empty: Share = 0.05
    hints: Share = 0.08
    punctuation_free: Share = 0.2
    text_only: Annotated[int, Field(ge=0)] = 0


class Training(Section):
    """The optimisation.

    Attributes:
        steps: length of the schedule; by time alone when None.
        minutes: time after which it ends, the schedule with it; by steps alone when None.
        rate: peak learning rate, of the decoder and the projection; cosine to 1 % after `warm_up_steps`.
        encoder: "frozen", "free" at `encoder_rate`, or "distilled": free, and drawn to the features of the encoder
            it started as, with its own windows, on the sound before distortion.
        token_noise: share of the fed-back tokens that are replaced, so that the decoder listens.
        ctc: weight of the auxiliary character loss (Graves 2006) on the decoder's middle layer.
        ema: decay of the moving average of the weights, which is what is exported; 0 exports the last weights.
        workers: processes that plan batches.
        save_minutes: between states of training on disk.
    """

    steps: Count | None = None
    minutes: Positive | None = None
    rate: Positive = 1.2e-3
    encoder: Literal["frozen", "distilled", "free"] = "frozen"
    encoder_rate: Positive = 8e-5
    distillation: Positive = 1.0
    text_weight: Positive = 0.3
    warm_up_steps: Count = 600
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    dropout: Share = 0.1
    label_smoothing: Share = 0.05
    token_noise: Share = 0.07
    ctc: Annotated[float, Field(ge=0)] = 0.2
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.9995
    workers: Annotated[int, Field(ge=0)] = 12
    save_minutes: Positive = 3.0

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps is None and self.minutes is None:
            msg = "name steps or minutes: training has to end"
            raise ValueError(msg)
        return self


class Configuration(Section):
    """A whole run.

    Attributes:
        seed: everything random follows from it.
        work: folder of all that is made, relative to the current one.
    """

    name: str
    seed: int = 1
    work: Path
    synthesis: Synthesis
    augmentation: Augmentation = Augmentation()
    packing: Packing = Packing()
    start: Start = Start()
    distortion: Distortion = Distortion()
    spec_augment: SpecAugment = SpecAugment()
    batches: Batches = Batches()
    training: Training

    @property
    def cache(self) -> Path:
        """Packages, and clips for evaluation."""
        return self.work / "packages"

    @property
    def shards(self) -> Path:
        """Speech as it was made."""
        return self.work / "shards"

    @property
    def parts(self) -> Path:
        """Speech as it travels."""
        return self.work / "parts"

    @property
    def state(self) -> Path:
        """Weights and state of training."""
        return self.work / "state"

    @property
    def model(self) -> Path:
        """The exported checkpoint."""
        return self.work / self.name


def load(path: Path) -> Configuration:
    """Read a file.

    Raises:
        SystemExit: it is not there, no TOML, or has unknown or impossible values; says which.
    """
    try:
        with path.open("rb") as file:
            return Configuration.model_validate(tomllib.load(file))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise SystemExit(f"{path}: {error}") from error
