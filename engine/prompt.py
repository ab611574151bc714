"""The chat form in which Qwen2.5-Omni transcribes, and how much it may say.

The system line and the instructions are those of the model's authors: Qwen2.5-Omni's cookbook "universal audio
understanding" has them for Chinese, English, French and Russian with a clause against punctuation, and Qwen3-Omni's
documentation gives the same words without it as the form for Chinese and for all other languages. The embedded
checkpoint is trained on the English ones.
"""

import math

SYSTEM = "You are a speech recognition model."
AUDIO_PLACEHOLDER = "<|audio_bos|><|AUDIO|><|audio_eos|>"
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


def instruction(language: str | None, context: str = "") -> str:
    """The user's words after the audio.

    Args:
        language: a key of LANGUAGE_NAMES, or None to let the model tell.
        context: words or a sentence that are likely to occur.
    """
    if language in _INSTRUCTIONS:
        words = _INSTRUCTIONS[language]
    else:
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
