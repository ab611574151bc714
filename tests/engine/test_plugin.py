import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path


def test_vllm_finds_the_entry_point() -> None:
    (ours,) = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "omnihear"]

    assert ours.value == "engine.plugin:register"


def test_registering_twice_from_another_folder_works(tmp_path: Path) -> None:
    code = "from engine.plugin import register; register(); register()"

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
