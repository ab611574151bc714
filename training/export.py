"""`python -m training.export CONFIG`: the trained weights as a folder that Transformers and vLLM load.

Names, config, tokenizer, processor and generation config are those of the form, which has them as Qwen2.5-Omni has:
no code knows which checkpoint it serves.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file, save_file

from training.configuration import Configuration, load
from training.progress import console
from training.synthesize import Config

WEIGHTS = "weights.safetensors"
PREFIX = "thinker."
TIED = "lm_head.weight"
KEPT = (
    "chat_template.jinja",
    "generation_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
MIB = 2**20


def main(
    config: Config,
    *,
    split_mib: Annotated[float, typer.Option(min=0, help="Also cut the weights into pieces of so many MiB.")] = 0,
) -> None:
    """Write the folder WORK/NAME."""
    configuration = load(config)
    folder = export(configuration)
    console.print(f"wrote {folder}, {(folder / 'model.safetensors').stat().st_size / 1e6:.1f} MB")
    for piece in split(folder / "model.safetensors", round(split_mib * MIB)) if split_mib else ():
        typer.echo(f"{piece}")


def save(configuration: Configuration, thinker: Any) -> Path:
    """Keep trained weights in bfloat16 beside the state, under the names that a checkpoint has."""
    path = configuration.state / WEIGHTS
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {
        PREFIX + name: value.detach().to("cpu", torch.bfloat16).contiguous().clone()
        for name, value in thinker.state_dict().items()
        if name != TIED
    }
    save_file(weights, path, metadata={"format": "pt"})
    return path


def export(configuration: Configuration) -> Path:
    """Put the folder together; the same bytes for the same weights.

    Raises:
        SystemExit: nothing is trained, or the weights are not those of the form.
    """
    trained, form, folder = configuration.state / WEIGHTS, configuration.start.form, configuration.model
    if not trained.exists():
        raise SystemExit(f"{trained} is not there: run training.train first")
    weights = load_file(trained)
    expected = {name: value.shape for name, value in load_file(form / "model.safetensors").items()}
    if {name: value.shape for name, value in weights.items()} != expected:
        raise SystemExit(f"{trained} has other weights than {form}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copy(form / name, folder)
    config = json.loads((form / "config.json").read_text(encoding="utf-8"))
    if configuration.start.n_window is not None:
        config["thinker_config"]["audio_config"]["n_window"] = configuration.start.n_window
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def split(path: Path, size: int) -> list[Path]:
    """Cut a file into `NAME.00`, `NAME.01`, ...; `cat NAME.??` puts it together."""
    content = path.read_bytes()
    pieces = []
    for number, start in enumerate(range(0, len(content), size)):
        piece = path.with_name(f"{path.name}.{number:02d}")
        piece.write_bytes(content[start : start + size])
        pieces.append(piece)
    return pieces


if __name__ == "__main__":
    typer.run(main)
