"""What a step sees: everything that is asked for is in the sound, and nothing else."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.config import MODELS
from engine.interface import SAMPLE_RATE
from engine.prompt import build_prompt
from tests.audio_factory import sine
from training import shards
from training.batches import IGNORED, Plan, Planner, Steps
from training.configuration import Batches, Distortion
from training.corpus import Corpus
from training.distortion import Sound
from training.encoder import audio_tokens
from training.shards import Spoken

TEXTS = ["Good morning.", "How are you, Mary?", "It's nine o'clock, and the library opens.", "Yes."]
SECONDS = [1.0, 1.5, 3.0, 0.5]


@pytest.fixture(name="corpus", scope="module")
def _corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("packed")
    spoken = [
        Spoken(
            samples=np.round(sine(seconds, frequency=300 + 200 * index) * 32767).astype(np.int16),
            text=text,
            voice="flite slt",
            source="s",
            held_out=index == 3,
        )
        for index, (text, seconds) in enumerate(zip(TEXTS, SECONDS, strict=True))
    ]
    shards.write(folder / "a.opus", spoken)
    return Corpus(folder, ".opus", {"flite": 0.5})


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODELS / "omni-tiny-en")


def planner(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, **choices: float) -> Planner:
    batches = Batches.model_validate({"seconds": 60.0, "empty": 0.0, "hints": 0.0, **choices})
    return Planner(corpus, ["A sentence alone."], tokenizer, batches, speed=0.1, seed=3)


def answer(plan: Plan, row: int, tokenizer: PreTrainedTokenizerBase) -> str:
    targets = plan.targets[row]
    return str(tokenizer.decode(targets[targets != IGNORED]))


def test_evaluation_clips_are_not_in_the_corpus(corpus: Corpus) -> None:
    assert sorted(corpus.texts) == sorted(TEXTS[:3])
    assert corpus.hours == pytest.approx(5.5 / 3600)


@pytest.mark.parametrize("joined", [0.0, 1.0])
def test_the_answer_is_what_is_placed_in_the_clip(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, joined: float
) -> None:
    plan = planner(corpus, tokenizer, joined=joined, punctuation_free=0.0)[7]

    said = {int(start): corpus.texts[text] for start, text in zip(corpus.starts, corpus.said, strict=True)}
    for row in range(len(plan.samples)):
        own = (plan.row == row).nonzero().flatten().tolist()
        order = sorted(own, key=lambda index: int(plan.place[index]))
        expected = " ".join(said[int(plan.source[index])] for index in order)
        assert answer(plan, row, tokenizer) == f"{expected}<|im_end|>"
        for first, second in pairwise(order):
            assert plan.place[first] + plan.length[first] <= plan.place[second]
        assert len(order) > 1 if joined else len(order) == 1
    assert (plan.place + plan.length <= plan.samples[plan.row] + SAMPLE_RATE // 100).all()
    if joined:
        assert plan.samples.max() > 5 * SAMPLE_RATE


def test_the_question_is_the_services_with_as_many_audio_tokens_as_the_encoder_makes(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase
) -> None:
    plan = planner(corpus, tokenizer, punctuation_free=0.0)[1]

    audio = tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    possible = {build_prompt("en"), build_prompt(None)}
    for tokens, targets, samples in zip(plan.tokens, plan.targets, plan.samples, strict=True):
        question = tokens[: int((targets != IGNORED).nonzero()[0]) + 1]
        assert int((question == audio).sum()) == int(audio_tokens(torch.tensor(-(-int(samples) // 160))))
        assert int((question == audio).nonzero()[0]) == plan.audio_start
        once = torch.cat([question[: plan.audio_start], question[question != audio][plan.audio_start :]])
        text = tokenizer.decode(once).replace("<|audio_bos|>", "<|audio_bos|><|AUDIO|>")
        assert text in possible


def test_without_punctuation_means_question_and_answer(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    plan = planner(corpus, tokenizer, punctuation_free=1.0)[2]

    for row in range(len(plan.samples)):
        assert "text without any punctuation marks." in tokenizer.decode(plan.tokens[row])
        assert not set(answer(plan, row, tokenizer).removesuffix("<|im_end|>")) & set(".,?!")


def test_clips_without_speech_have_an_empty_answer(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    plan = planner(corpus, tokenizer, empty=1.0)[0]

    assert len(plan.source) == 0
    assert {answer(plan, row, tokenizer) for row in range(len(plan.samples))} == {"<|im_end|>"}
    assert plan.letter_counts.sum() == 0


def test_sentences_alone_have_no_audio(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    plan = planner(corpus, tokenizer, text_only=1)[0]

    assert tokenizer.decode(plan.text_tokens[0]) == "<|im_start|>assistant\nA sentence alone.<|im_end|>"
    wanted = plan.text_targets[0]
    assert tokenizer.decode(wanted[wanted != IGNORED]) == "A sentence alone.<|im_end|>"


def test_a_step_is_the_same_whenever_it_comes(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    first, again, other = (planner(corpus, tokenizer)[step] for step in (5, 5, 6))

    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.gain, again.gain)
    assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)
    numbers = iter(Steps(4))
    assert [next(numbers), next(numbers)] == [4, 5]


def test_the_sound_is_where_the_plan_says(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    plan = planner(corpus, tokenizer, joined=1.0)[3]
    sound = Sound(corpus, torch.device("cpu"), 1, noises=7, rooms=4, seconds=2)

    clean = sound.clean(plan)

    spoken = torch.zeros_like(clean, dtype=torch.bool)
    for row, place, length, gain in zip(plan.row, plan.place, plan.length, plan.gain, strict=True):
        spoken[row, place : place + length] = True
        level = clean[row, place : place + length].std()
        assert level == pytest.approx(0.5 / 2**0.5 * float(gain), rel=0.1)
    assert clean[~spoken].abs().max() == 0


def test_distortion_changes_every_clip_and_keeps_its_limits(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    plan = planner(corpus, tokenizer, empty=0.3)[4]
    sound = Sound(corpus, torch.device("cpu"), 1, noises=7, rooms=4, seconds=2)
    clean = sound.clean(plan)
    everything = Distortion(rooms=1, telephone=0.5, bands=1, noise=1, babble=1, mulaw=0.5, clipping=0.5)

    distorted = sound.distorted(clean, plan, everything, torch.Generator().manual_seed(2))

    assert torch.isfinite(distorted).all()
    assert distorted.abs().max() <= 1
    behind = torch.arange(clean.shape[1]) >= plan.samples[:, None]
    assert distorted[behind].abs().max() == 0 if behind.any() else True
    assert ((distorted - clean).abs().amax(1) > 1e-4).all()
    again = sound.distorted(clean, plan, everything, torch.Generator().manual_seed(2))
    assert torch.equal(distorted, again)


def test_without_any_distortion_only_the_level_changes(corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    plan = planner(corpus, tokenizer, joined=0.0)[8]
    sound = Sound(corpus, torch.device("cpu"), 1, noises=7, rooms=4, seconds=2)
    clean = sound.clean(plan)
    nothing = Distortion(rooms=0, telephone=0, bands=0, noise=0, babble=0, mulaw=0, clipping=0)

    distorted = sound.distorted(clean, plan, nothing, torch.Generator().manual_seed(2))

    likeness = torch.nn.functional.cosine_similarity(distorted, clean)
    assert likeness.min() > 0.6  # tilts and high-pass filters stay
