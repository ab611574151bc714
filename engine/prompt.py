"""The chat form in which Qwen2.5-Omni transcribes, and how much it may say.

The system line and the instruction are those of the model's authors (Qwen2.5-Omni cookbooks, "universal audio
understanding"); the embedded checkpoint is trained on the same words.
"""

import math

SYSTEM = "You are a speech recognition model."
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


def instruction(language: str | None, context: str = "") -> str:
    """The user's words after the audio.

    Args:
        language: a key of LANGUAGE_NAMES, or None to let the model tell.
        context: words or a sentence that are likely to occur.
    """
    speech = f"the {LANGUAGE_NAMES[language]} audio" if language else "the audio"
    words = f"Transcribe {speech} into text."
    inert = neutralise(context).strip()
    return f"{words} Context: {inert}" if inert else words


def build_prompt(language: str | None, context: str = "") -> str:
    """The whole prompt of one segment, ready for the tokenizer: one audio placeholder, whatever the context holds."""
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\n{AUDIO_PLACEHOLDER}{instruction(language, context)}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def neutralise(text: str) -> str:
    """Make the tokenizer read markup such as `<|im_end|>` in a user's text as plain characters."""
    return " ".join(text.replace("<|", "< |").replace("|>", "| >").split())


def token_budget(seconds: float) -> int:
    """Most tokens that speech of this length may take: fast speech is 6 a second, the rest is for numbers and names."""
    return 16 + math.ceil(10 * seconds)


def prompt_tokens(seconds: float, context_tokens: int) -> int:
    """Upper bound of the tokens a request needs before it answers; 64 cover the chat form and the instruction."""
    return math.ceil(AUDIO_TOKENS_PER_SECOND * seconds) + 64 + context_tokens
