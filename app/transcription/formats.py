"""Renderings of a transcript that are text; the JSON ones are in `app.schemas`."""

from app.transcription.transcript import Transcript


def to_text(transcript: Transcript) -> str:
    """The bare text and a line feed, as OpenAI's API answers."""
    return f"{transcript.text}\n"


def to_srt(transcript: Transcript) -> str:
    """SubRip: numbered cues, comma before the milliseconds."""
    cues = [
        f"{number}\n{clock(segment.start, ',')} --> {clock(segment.end, ',')}\n{_without_arrows(segment.labelled)}\n"
        for number, segment in enumerate(transcript.segments, 1)
    ]
    return "\n".join(cues)


def to_vtt(transcript: Transcript) -> str:
    """WebVTT (W3C): header, full stop before the milliseconds, markup in the text escaped."""
    cues = [
        f"{clock(segment.start, '.')} --> {clock(segment.end, '.')}\n{_escape(segment.labelled)}\n"
        for segment in transcript.segments
    ]
    return "\n".join(["WEBVTT\n", *cues])


def clock(seconds: float, point: str) -> str:
    """HH:MM:SS and milliseconds, cut rather than rounded so that no cue ends after the audio."""
    milliseconds = int(seconds * 1000 + 1e-6)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{point}{milliseconds:03}"


def _without_arrows(text: str) -> str:
    """SubRip has no escapes, and players look for the arrow between two times."""
    return text.replace("-->", "->")


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
