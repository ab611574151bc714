"""Languages as people write them, and as the engine knows them."""

from app.transcription.exceptions import InvalidFieldError
from engine.prompt import LANGUAGE_NAMES

_BY_NAME = {name.lower(): code for code, name in LANGUAGE_NAMES.items()}
# Other names and codes of the same languages: ISO 639-2 and -3, withdrawn codes, and what people say.
_ALIASES = {
    "ara": "ar", "ces": "cs", "cze": "cs", "dan": "da", "deu": "de", "ger": "de", "ell": "el", "gre": "el",
    "eng": "en", "spa": "es", "castilian": "es", "fin": "fi", "fra": "fr", "fre": "fr", "heb": "he", "iw": "he",
    "hin": "hi", "hun": "hu", "ind": "id", "in": "id", "ita": "it", "jpn": "ja", "kor": "ko", "msa": "ms",
    "may": "ms", "nld": "nl", "dut": "nl", "flemish": "nl", "nor": "no", "nob": "no", "nb": "no", "nno": "no",
    "nn": "no", "pol": "pl", "por": "pt", "ron": "ro", "rum": "ro", "mo": "ro", "rus": "ru", "swe": "sv",
    "tha": "th", "tur": "tr", "ukr": "uk", "vie": "vi", "zho": "zh", "chi": "zh", "cmn": "zh", "mandarin": "zh",
    "zh-yue": "yue",
}  # fmt: skip


def parse_language(text: str, served: tuple[str, ...]) -> str | None:
    """Take a code (`en`), a tag with region or script (`en-US`, `zh_Hant`), an English name, or `auto`.

    Codes of three letters are taken too.

    Returns:
        the ISO 639-1 code, or None where the model shall tell.

    Raises:
        InvalidFieldError: for what is no language, or one that is not served; lists those that are.
    """
    spoken = text.strip().lower()
    if spoken in ("", "auto"):
        return served[0] if len(served) == 1 else None
    tag = spoken.replace("_", "-")
    base = tag.split("-")[0]
    code = _BY_NAME.get(spoken) or _ALIASES.get(tag) or _ALIASES.get(base, base)
    if code not in served:
        msg = f"language {text.strip()!r} is not served by this model; served are {', '.join(served)} and auto"
        raise InvalidFieldError(msg, param="language", code="unsupported_language")
    return code


def language_name(code: str | None) -> str | None:
    """The English name in lower case, as OpenAI's verbose format has it."""
    return LANGUAGE_NAMES[code].lower() if code else None
