"""Word error rate as the field counts it: Whisper's English normalizer, then edit distance over words."""

import jiwer
from whisper_normalizer.english import EnglishTextNormalizer

_normalize = EnglishTextNormalizer()


def word_error_rate(reference: str, hypothesis: str) -> float:
    return float(jiwer.wer(_normalize(reference), _normalize(hypothesis)))
