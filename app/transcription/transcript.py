"""What a caller asks for and what comes of it; every response format is made from one Transcript."""

from dataclasses import dataclass

from app.transcription.types import AudioWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionOptions:
    """What the caller may choose.

    Attributes:
        language: ISO 639-1 code that the engine serves, None to let the model tell.
        prompt: words or a sentence that are likely to occur.
        hotwords: names and terms that are likely to occur.
        temperature: 0 decodes greedily.
    """

    language: str | None = None
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    temperature: float = 0.0

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
    """

    index: int
    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Where the time of a request went, in seconds.

    Attributes:
        queue: until the request was admitted.
        decode: from bytes to a waveform.
        segment: finding speech.
        inference: from the first segment's arrival at the engine to the last text.
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
        language: ISO 639-1 code as asked for, the only one the model speaks, or the one that the model named; None when
            nobody said.
        duration: seconds of audio.
        segments: in order of time; none where there is no speech.
        warnings: what the caller should know.
        input_tokens: of all prompts, audio included.
        output_tokens: of all texts.
    """

    text: str
    language: str | None
    duration: float
    segments: tuple[Segment, ...]
    warnings: tuple[AudioWarning, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    stages: StageSeconds = StageSeconds()

    @property
    def no_speech(self) -> bool:
        """Whether the audio holds no speech."""
        return not self.text
