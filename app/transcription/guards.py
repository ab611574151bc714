"""What a speech model says beside the transcript, and how it is kept out.

A chat model wraps ("The original content of this audio is: '...'", seen with Qwen2-Audio and Qwen2.5-Omni), repeats
itself without end, gives its prompt back where it hears nothing, and may leak its markup. Each guard looks at the text
so far and tells which part of it is settled: whatever follows, the final text begins with that. So a stream can pass
it on, and ends with the same text as an answer that was read whole.
"""

from dataclasses import dataclass
from typing import Final

import regex

from app.transcription.units import Unit, contains, keys, units
from engine.prompt import LANGUAGE_NAMES

SPECIAL_TOKENS: Final = "special_tokens"
WRAPPER: Final = "wrapper"
REPETITION: Final = "repetition"
PROMPT_ECHO: Final = "prompt_echo"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """Which guards are on.

    Attributes:
        special_tokens: remove the model's markup, such as `<|im_end|>`.
        wrapper_sentences: remove words of the model around the transcript, and quotes around the whole of it.
        repetition_loops: end a request that repeats itself, try once more, and keep one copy of what was repeated.
        prompt_echo: ask again without the prompt where the answer consists of words of the prompt alone.
    """

    special_tokens: bool = True
    wrapper_sentences: bool = True
    repetition_loops: bool = True
    prompt_echo: bool = True


class SegmentGuard:
    """Reads the answer to one request as it grows.

    Attributes:
        text: settled so far; after `finish` the whole.
        findings: codes of the guards that had to step in, in the order of the steps.
        looped: the answer repeats itself: no more of it is needed.
        language: code of the language that the model named in a wrapper sentence.
    """

    def __init__(self, policy: GuardPolicy) -> None:
        self.text = ""
        self.findings: list[str] = []
        self.looped = False
        self.language: str | None = None
        self._policy = policy
        self._raw = ""
        self._loops = _LoopDetector()

    def feed(self, more: str) -> None:
        """Take the next piece of the answer."""
        self._raw += more
        self._read(final=False)

    def finish(self) -> None:
        """Take note that the answer is complete."""
        self._read(final=True)

    def _read(self, *, final: bool) -> None:
        if self.looped:
            return
        policy, text = self._policy, self._raw
        if policy.special_tokens:
            text, found = strip_special_tokens(text, final=final)
            self._note(SPECIAL_TOKENS, found=found)
        if policy.wrapper_sentences:
            unwrapped = unwrap(text, final=final)
            text, self.language = unwrapped.text, unwrapped.language
            self._note(WRAPPER, found=unwrapped.found)
        text = text.lstrip()
        if policy.repetition_loops:
            text = text[: self._loops.read(text, final=final)]
            self.looped = self._loops.looped
            self._note(REPETITION, found=self.looped)
        self.text = " ".join(text.split())  # a cue of subtitles ends at an empty line

    def _note(self, code: str, *, found: bool) -> None:
        if found and code not in self.findings:
            self.findings.append(code)


_TOKEN = regex.compile(r"<\|[^|<>\s]{1,40}\|>")
_TOKEN_BEGUN = regex.compile(r"<(?:\|(?:[^|<>\s]{1,40}\|?)?)?$")


def strip_special_tokens(text: str, *, final: bool) -> tuple[str, bool]:
    """Remove markup of the model; returns the text that is settled, and whether any was found."""
    if not final and (begun := _TOKEN_BEGUN.search(text)) is not None:
        text = text[: begun.start()]
    stripped, count = _TOKEN.subn("", text)
    return stripped, count > 0


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A transcript without the sentence around it."""

    text: str
    found: bool = False
    language: str | None = None


_CLOSING: Final = {"'": "'", '"': '"', "“": "”", "‘": "’", "「": "」", "『": "』", "《": "》", "`": "`"}
_OPENING = "".join(map(regex.escape, _CLOSING))
_CHINESE_NAMES = {
    "中文": "zh", "汉语": "zh", "普通话": "zh", "粤语": "yue", "英文": "en", "英语": "en", "日语": "ja", "韩语": "ko",
    "法语": "fr", "德语": "de", "西班牙语": "es", "俄语": "ru", "意大利语": "it", "葡萄牙语": "pt", "阿拉伯语": "ar",
}  # fmt: skip
_LANGUAGE = rf"(?P<language>{'|'.join([*LANGUAGE_NAMES.values(), 'Mandarin', *_CHINESE_NAMES])})"
_SOUND = r"(?:audio|speech|recording|voice|sound|clip|message|video)"
_WORDS = r"(?:transcription|translation|transcript|contents?|text|words)"

# A sentence of the model's own ends in a colon or stands before a quote: without either it may have been spoken.
_WRAPPER = regex.compile(
    rf"""
    (?:(?:sure|certainly|of\ course|okay|ok|well|yes)[,.!]\s+)?
    (?:
        (?:here(?:['’]s|\ is)|this\ is|the\ following\ is)\ (?:the|a)\ (?:\w+\ ){{0,2}}?{_WORDS}
        (?:\ (?:of|for|from|in)\ (?:the|this|your)\ (?:\w+\ ){{0,2}}?{_SOUND}(?:\ \w+)?)?
        |the\ (?:\w+\ ){{0,2}}?(?:{_WORDS}|{_SOUND}|speaker|person(?:\ speaking)?)
        (?:\ (?:of|for|from|in)\ (?:the|this|your)\ (?:\w+\ ){{0,2}}?{_SOUND}(?:\ \w+)?)?
        (?:\ transcribed(?:\ verbatim)?)?
        \ (?:is|are|says?|said|reads?|contains?|states?|goes)
        (?:\ in\ {_LANGUAGE})?(?:,?\ saying)?(?:\ as\ follows|\ the\ following(?:\ \w+)?)?
        |(?:the\ )?(?:transcription|translation|transcript)
    )
    (?:\s*[:：]\s*|,?\s*(?=[{_OPENING}]))(?P<quote>[{_OPENING}])?
    |the\ {_SOUND}\ is\ in\ {_LANGUAGE},?\ saying[,:]?\s+(?P<quote>[{_OPENING}])?
    |(?:好的[，,。！!]\s*)?(?:以下是|这是|下面是)?(?:这段|该段?|这个|本段)?
    (?:音频|语音|录音|转录|转写)(?:是?用{_LANGUAGE})?\p{{Han}}{{0,12}}?
    (?:是|为|说的?|道|如下|结果|内容|文本|文字|原文)(?:\s*[:：]\s*|(?=[{_OPENING}]))(?P<quote>[{_OPENING}])?
    """,
    regex.VERBOSE | regex.IGNORECASE,
)
_ENDED = r"(?=\s*$|[.。,，;；!！?？]|\s+\p{Lu})"  # what follows a quote that ends a transcript


def unwrap(text: str, *, final: bool) -> Unwrapped:
    """Remove a sentence of the model in front of the transcript, or quotes around the whole of it.

    With the sentence goes what the model adds after the closing quote. Where the beginning of `text` may still become
    such a sentence, or quotes may turn out to enclose everything, nothing of it is settled.
    """
    body = text.lstrip()
    match = _WRAPPER.match(body, partial=not final)
    if match is None:
        return _unquote(body, final=final)
    if match.partial or (not final and match.end() == len(body)):
        return Unwrapped("")
    named = match["language"]
    rest = body[match.end() :]
    if (quote := match["quote"]) is not None:
        ends = [end.start() for end in regex.finditer(regex.escape(_CLOSING[quote]) + _ENDED, rest)]
        rest = rest[: ends[-1]] if ends else rest
    return Unwrapped(rest, found=True, language=_language_code(named) if named else None)


def _unquote(body: str, *, final: bool) -> Unwrapped:
    closing = _CLOSING.get(body[:1])
    if closing is None:
        return Unwrapped(body)
    end = regex.search(regex.escape(closing) + r"(?![\p{L}\p{N}])", body, pos=1)
    if end is None:
        return Unwrapped(body if final else "")
    if body[end.end() :].strip(" \n.。"):
        return Unwrapped(body)
    return Unwrapped(body[1 : end.start()], found=True) if final else Unwrapped("")


def _language_code(name: str) -> str | None:
    if name.lower() == "mandarin":
        return "zh"
    names = {known.lower(): code for code, known in LANGUAGE_NAMES.items()} | _CHINESE_NAMES
    return names.get(name.lower())


MAX_PERIOD: Final = 40  # units: a sentence
_COPIES: Final = ((1, 10), (2, 7), (3, 6), (7, 5), (15, 4), (MAX_PERIOD, 3))  # up to this period, so many copies


# One word that goes on and on, such as "hahaha...": a short stretch of it, this many times. A number may have 15 zeros.
_LOOP_IN_WORD = regex.compile(r"(\S{1,8}?)\1{23}")


def copies_allowed(period: int) -> int:
    """Copies in a row that count as a loop; people say a word often, a sentence hardly three times."""
    return next(copies for longest, copies in _COPIES if period <= longest)


class _LoopDetector:
    """Finds the first place where a text repeats a stretch of units too often.

    Works from unit to unit, so that the same text gives the same result however it arrives.

    Attributes:
        looped: such a place was found.
    """

    def __init__(self) -> None:
        self.looped = False
        self._units: list[Unit] = []
        self._agreeing = [0] * (MAX_PERIOD + 1)  # by period: how many last units equal the one that long before
        self._settled = 0  # characters

    def read(self, text: str, *, final: bool) -> int:
        """Length of the part of `text` that is settled; a call's text begins with the text of the call before."""
        if self.looped:
            return self._settled
        start = self._units[-1].end if self._units else 0
        for unit in units(text, start, final=final):
            if self._goes_on(text, unit.start, unit.end):
                return self._settled
            self._units.append(unit)
            period = self._step()
            if period is not None:
                self.looped = True
                self._settled = self._end_of(len(self._units) - self._agreeing[period])
                return self._settled
        if not final and self._goes_on(text, self._end_of(len(self._units)), len(text)):
            return self._settled
        repeated = 0 if final else max(self._agreeing)  # may be cut yet
        self._settled = len(text) if final else self._end_of(len(self._units) - repeated)
        return self._settled

    def _goes_on(self, text: str, start: int, end: int) -> bool:
        """Whether the word there, which may not have ended, is a loop in itself."""
        if (match := _LOOP_IN_WORD.search(text, start, end)) is not None:
            self.looped = True
            self._settled = match.end(1)
        return self.looped

    def _step(self) -> int | None:
        """Take the last unit into account; returns the period of a loop that it completes."""
        found = None
        for period in range(1, min(MAX_PERIOD, len(self._units) - 1) + 1):
            same = self._units[-1].key == self._units[-1 - period].key
            self._agreeing[period] = self._agreeing[period] + 1 if same else 0
            if found is None and self._agreeing[period] >= (copies_allowed(period) - 1) * period:
                found = period
        return found

    def _end_of(self, count: int) -> int:
        return self._units[count - 1].end if count else 0


def may_be_echo(text: str, context: str) -> bool:
    """Whether a text consists of words that follow each other in the caller's context; an empty one may become so."""
    said = keys(text)
    return contains(keys(context), said)


def is_echo(text: str, context: str) -> bool:
    """Whether a whole text looks like the context given back: several words of it in a row, or all of it."""
    said, given = keys(text), keys(context)
    return bool(said) and (len(said) > 1 or said == given) and contains(given, said)
