"""What a caller asks for and what comes of it; every response format is made from one Transcript."""

from dataclasses import dataclass

from app.transcription.joining import join, label
from app.transcription.types import AudioWarning
from engine.prompt import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionOptions:
    """What the caller may choose.

    Attributes:
        task: "translate" for English text of speech in any language.
        language: ISO 639-1 code that the engine serves, None to let the model tell.
        separate_channels: transcribe each channel in place of their mix.
        prompt: words or a sentence that are likely to occur.
        hotwords: names and terms that are likely to occur.
        temperature: 0 decodes greedily.
    """

    task: Task = "transcribe"
    language: str | None = None
    separate_channels: bool = False
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    temperature: float = 0.0

    @property
    def text_language(self) -> str | None:
        """The language of the text, None where nobody said."""
        return "en" if self.task == "translate" else self.language

    @property
    def context(self) -> str:
        """Prompt and hotwords, as the engine is told them."""
        return " ".join(part for part in (self.prompt.strip(), ", ".join(self.hotwords)) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of speech and its text.

    Attributes:
        start: seconds from the start of the audio.
        end: seconds from the start of the audio.
        channel: that says it, counted from 1; None where the channels were mixed.
    """

    index: int
    start: float
    end: float
    text: str
    channel: int | None = None

    @property
    def labelled(self) -> str:
        """The text as subtitles show it."""
        return self.text if self.channel is None else f"{label(self.channel)}{self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Where the time of a request went, in seconds.

    Attributes:
        queue: waiting for a decode worker, and for the first turn at the engine.
        decode: from bytes to a waveform.
        segment: finding speech.
        inference: from the first segment's turn at the engine to the last text.
    """

    queue: float = 0.0
    decode: float = 0.0
    segment: float = 0.0
    inference: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The one result behind every format.

    Attributes:
        text: of all segments, joined.
        task: what was done.
        language: of the text, ISO 639-1 code: as asked for, the only one the model speaks, or the one that the model
            named; None when nobody said.
        duration: seconds of audio.
        n_channels: that were transcribed one by one; 0 where they were mixed.
        segments: in order of time; none where there is no speech.
        warnings: what the caller should know.
        input_tokens: of all prompts, audio included.
        output_tokens: of all texts.
    """

    text: str
    task: Task = "transcribe"
    language: str | None
    duration: float
    n_channels: int = 0
    segments: tuple[Segment, ...]
    warnings: tuple[AudioWarning, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    stages: StageSeconds = StageSeconds()

    @property
    def no_speech(self) -> bool:
        """Whether the audio holds no speech."""
        return not self.text

    def channel_texts(self) -> dict[int, str] | None:
        """What each channel says, None where they were mixed."""
        if not self.n_channels:
            return None
        return {
            number: join(
                ((segment.text, None) for segment in self.segments if segment.channel == number), self.language
            )
            for number in range(1, self.n_channels + 1)
        }
