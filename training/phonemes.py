"""Text in the alphabet of Kokoro, by espeak-ng's library: the rules are those of Kokoro's own phonemizer, misaki."""

import ctypes
import functools
import re

LIBRARY = "libespeak-ng.so.1"
SYNCHRONOUS, UTF8, IPA = 2, 1, 2  # of speak_lib.h
VOICES = {False: b"en-us", True: b"en-gb"}
MARKS = ",.;:?!"

# espeak-ng's symbols and Kokoro's; the order matters. The second column is Kokoro's own, look-alikes included.
RULES = (
    ("r", "ɹ"), ("x", "k"), ("ɬ", "l"), ("ʲ", "j"), ("aɪ", "I"), ("aʊ", "W"), ("eɪ", "A"), ("oʊ", "O"),
    ("əʊ", "Q"), ("ɔɪ", "Y"), ("tʃ", "ʧ"), ("dʒ", "ʤ"), ("ɐ", "ə"), ("ɚ", "əɹ"),
)  # fmt: skip


def phonemes(text: str, *, british: bool) -> str:
    """Of one sentence; punctuation that the voice hears stays, and there is an end.

    Raises:
        SystemExit: espeak-ng is not installed.
    """
    said = ""
    for piece in re.findall(rf"[^{MARKS}]+|[{MARKS}]+", text):
        if piece[0] in MARKS:
            said += piece
        elif piece.strip():
            said += (" " if said else "") + _clause(piece.strip(), british=british)
    return said if said[-1:] in (".", "?", "!") else said + "."


def _clause(text: str, *, british: bool) -> str:
    library = _library()
    library.espeak_SetVoiceByName(VOICES[british])
    rest = ctypes.c_char_p(text.encode())
    parts = []
    while rest.value:  # a clause of espeak-ng's at a time, which moves the pointer
        parts.append((library.espeak_TextToPhonemes(ctypes.byref(rest), UTF8, IPA) or b"").decode())
    said = re.sub(r"\([a-z-]+\)", "", " ".join(" ".join(parts).split())).strip()  # marks of another language
    for old, new in RULES:
        said = said.replace(old, new)
    return said if british else said.replace("ː", "")


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise SystemExit("espeak-ng is not installed: apt-get install espeak-ng") from error
    library.espeak_Initialize(SYNCHRONOUS, 0, None, 0)
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
    return library
