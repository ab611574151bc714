"""Languages as people write them, and as the engine knows them."""

from app.transcription.exceptions import InvalidFieldError
from engine.prompt import LANGUAGE_NAMES

_BY_NAME = {name.lower(): code for code, name in LANGUAGE_NAMES.items()}


def parse_language(text: str, served: tuple[str, ...]) -> str | None:
    """Take a code (`en`), a tag with region or script (`en-US`, `zh_Hant`), an English name, or `auto`.

    Returns:
        the ISO 639-1 code, or None where the model shall tell.

    Raises:
        InvalidFieldError: for what is no language, or one that is not served; lists those that are.
    """
    spoken = text.strip().lower()
    if spoken in ("", "auto"):
        return served[0] if len(served) == 1 else None
    base = spoken.replace("_", "-").split("-")[0]
    code = _BY_NAME.get(spoken, base)
    if code not in served:
        msg = f"language {text.strip()!r} is not served by this model; served are {', '.join(served)} and auto"
        raise InvalidFieldError(msg, param="language", code="unsupported_language")
    return code


def language_name(code: str | None) -> str | None:
    """The English name in lower case, as OpenAI's verbose format has it."""
    return LANGUAGE_NAMES[code].lower() if code else None
