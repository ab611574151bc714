"""The model card: the template beside this file, filled with what a run was made of and how it did."""

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from benchmarks import machine
from benchmarks.report import markdown_table
from benchmarks.scoring import HEAD, RESAMPLES, SetScore, row
from engine.interface import SAMPLE_RATE
from training import shards
from training.configuration import Configuration
from training.pack import packed
from training.synthesize import sentences
from training.texts import totals

TEMPLATE = Path(__file__).with_name("model_card.md")
WHISPER = "Whisper tiny.en (encoder, and the token embeddings at the start): Copyright (c) 2022 OpenAI, MIT licence."
QWEN = "Qwen tokenizer, cut, and the format of Qwen2.5-Omni: Alibaba Cloud, Apache-2.0."


def fill(configuration: Configuration, scores: Sequence[SetScore]) -> str:
    """Markdown."""
    config = json.loads((configuration.model / "config.json").read_text(encoding="utf-8"))["thinker_config"]
    audio, text = config["audio_config"], config["text_config"]
    voices, hours = speech(configuration)
    training, held_out = sentences(configuration)
    counts = totals(training)
    licences = [f"{each.name}: {each.attribution}, {each.licence}" for each in configuration.synthesis.texts]
    licences += [f"{each.engine}: {each.attribution}, {each.licence}" for each in configuration.synthesis.voices]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=configuration.name,
        encoder=f"{audio['encoder_layers']} layers, width {audio['d_model']}, {audio['num_mel_bins']} mel bins, "
        f"windows of {audio['n_window'] / 50:g} s (`n_window` {audio['n_window']})",
        decoder=f"{text['num_hidden_layers']} layers, width {text['hidden_size']}, "
        f"{text['num_attention_heads']} heads, {text['num_key_value_heads']} key/value heads, "
        f"vocabulary {text['vocab_size']}, tied embeddings",
        hours=f"{hours:.2f}",
        voices="\n".join(markdown_table(["voice", "hours", "of that coded"], voices)),
        texts="\n".join(
            markdown_table(
                ["source", "sentences", "licence"],
                [[each.name, str(counts.get(each.name, 0)), each.licence] for each in configuration.synthesis.texts],
            )
        ),
        held_out=str(len(held_out)),
        configuration=configuration.model_dump_json(
            indent=1, include={"seed", "start", "distortion", "spec_augment", "batches", "training"}
        ),
        commit=machine.commit(),
        scores="\n".join(markdown_table(HEAD, [row(each) for each in scores])),
        resamples=str(RESAMPLES),
        licences="\n".join(f"- {line}" for line in [WHISPER, QWEN, *licences]),
    )


def speech(configuration: Configuration) -> tuple[list[list[str]], float]:
    """Rows of hours by synthesizer, and their sum; evaluation left out."""
    found: dict[str, list[int]] = {}
    for path in shards.complete(packed(configuration), ".opus"):
        for each in shards.utterances_of(path):
            if not each.held_out:
                samples = found.setdefault(each.voice.split()[0], [0, 0])
                samples[each.codec is not None] += each.length
    rows = [
        [name, f"{(plain + coded) / SAMPLE_RATE / 3600:.2f}", f"{coded / SAMPLE_RATE / 3600:.2f}"]
        for name, (plain, coded) in sorted(found.items())
    ]
    return rows, sum(map(sum, found.values())) / SAMPLE_RATE / 3600
