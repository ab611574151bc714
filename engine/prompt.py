"""The chat form in which Qwen2.5-Omni transcribes, and how much it may say.

The system line and the instructions are those of the model's authors: Qwen2.5-Omni's cookbook "universal audio
understanding" has them for Chinese, English, French and Russian with a clause against punctuation, and for translation;
Qwen3-Omni's documentation gives the same words without that clause as the form for Chinese and for all other languages.
The embedded checkpoint is trained on the English ones, and does not translate. Everything that asks the model takes its
words from here, also vLLM's transcription protocol (`engine.models.transcription`).
"""

import math
from typing import Literal

Task = Literal["transcribe", "translate"]
"""What is wanted of speech: its words, or what they mean in English."""

SYSTEM = "You are a speech recognition model."
TRANSLATION_SYSTEM = "You are a speech translation model."
AUDIO_TOKEN = "<|AUDIO|>"  # noqa: S105  # stands for one audio embedding
AUDIO_PLACEHOLDER = f"<|audio_bos|>{AUDIO_TOKEN}<|audio_eos|>"
AUDIO_TOKENS_PER_SECOND = 25  # the encoder pools 100 mel frames a second by 4

# English names of the languages, for the instruction.
LANGUAGE_NAMES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "ms": "Malay",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "yue": "Cantonese",
    "zh": "Chinese",
}

# Where the authors do not ask in English.
_INSTRUCTIONS = {"zh": "请将这段中文语音转换为纯文本。"}


def instruction(language: str | None, context: str = "", *, task: Task = "transcribe", into: str = "en") -> str:
    """The user's words after the audio.

    Args:
        language: of the speech, a key of LANGUAGE_NAMES, or None to let the model tell.
        context: words or a sentence that are likely to occur.
        task: "translate" asks for text in another language.
        into: that language, a key of LANGUAGE_NAMES.
    """
    name = f"{LANGUAGE_NAMES[language]} " if language else ""
    if task == "translate":
        words = f"Listen to the provided {name}speech and produce a translation in {LANGUAGE_NAMES[into]} text."
    else:
        words = _INSTRUCTIONS.get(language or "", f"Transcribe the {name}audio into text.")
    inert = neutralise(context).strip()
    return f"{words} Context: {inert}" if inert else words


def build_prompt(language: str | None, context: str = "", *, task: Task = "transcribe", into: str = "en") -> str:
    """The whole prompt of one segment, ready for the tokenizer: one audio placeholder, whatever the context holds."""
    system = TRANSLATION_SYSTEM if task == "translate" else SYSTEM
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        f"<|im_start|>user\n{AUDIO_PLACEHOLDER}{instruction(language, context, task=task, into=into)}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def neutralise(text: str) -> str:
    """Make the tokenizer read markup such as `<|im_end|>` in a user's text as plain characters."""
    return " ".join(text.replace("<|", "< |").replace("|>", "| >").split())


def token_budget(seconds: float) -> int:
    """Most tokens that speech of this length may take: fast speech is 6 a second, the rest is for numbers and names."""
    return 16 + math.ceil(10 * seconds)


# Where `SpeechRequest.end_repetition` ends an answer: a stretch of so many tokens, shortest and longest, has come so
# many times in a row. A shorter one that goes on is found as a multiple of itself, a single token after 40. People do
# not say that of 8 tokens, but where a word takes several, as in Hindi, they may: whoever asks looks at the words.
REPEATED_TOKENS = (8, 48)
REPEATED_COPIES = 5


def prompt_tokens(seconds: float, context_tokens: int) -> int:
    """Upper bound of the tokens a request needs before it answers; 64 cover the chat form and the instruction."""
    return math.ceil(AUDIO_TOKENS_PER_SECOND * seconds) + 64 + context_tokens
