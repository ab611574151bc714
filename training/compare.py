"""`python -m training.compare CONFIG`: whether vLLM writes what Transformers writes, greedily, clip by clip.

Both in bfloat16, alone in their batch; the engine is the service's, on the profile of a CPU.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from app.settings import load_settings
from engine.engine_process import EngineProcess
from engine.interface import SpeechRequest
from training.configuration import load
from training.decoding import Transcriber
from training.evaluate import evaluation_sets
from training.progress import bar
from training.shards import Samples
from training.synthesize import Config


def main(
    config: Config, *, clips: Annotated[int, typer.Option(min=1, help="Drawn evenly from all sets.")] = 30
) -> None:
    """Compare on evaluation clips; ends with status 1 where a text differs."""
    configuration = load(config)
    sets = list(evaluation_sets(configuration).values())
    mixed = [spoken[index] for index in range(max(map(len, sets))) for spoken in sets if index < len(spoken)]
    pairs = texts(configuration.model, [each.samples for each in mixed[:clips]])
    for transformers, vllm in pairs:
        if transformers != vllm:
            typer.echo(f"Transformers: {transformers}\nvLLM:         {vllm}")
    same = sum(transformers == vllm for transformers, vllm in pairs)
    typer.echo(f"equal: {same} of {len(pairs)}")
    raise typer.Exit(same < len(pairs))


def texts(model: Path, clips: Sequence[Samples]) -> list[tuple[str, str]]:
    """What Transformers and vLLM write for each clip, at most 30 s of 16 kHz mono."""
    reference = Transcriber(model).texts(clips, batch=1)
    return list(zip(reference, asyncio.run(_served(model, clips)), strict=True))


async def _served(model: Path, clips: Sequence[Samples]) -> list[str]:
    engine = EngineProcess(load_settings("cpu").engine.model_copy(update={"model": str(model)}))
    await engine.start(lambda phase, share: None)
    try:
        heard = []
        with bar("vLLM", len(clips)) as progress:
            for number, clip in enumerate(clips):
                waveform = clip.astype(np.float32) / np.float32(32768)
                request = SpeechRequest(request_id=f"clip-{number}", waveform=waveform, language="en")
                heard.append("".join([output.text async for output in engine.generate(request)]).strip())
                progress.advance()
        return heard
    finally:
        await engine.shutdown()


if __name__ == "__main__":
    typer.run(main)
