"""Every example of docs/api.md, as a reader would run it, against the real service."""

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import ROOT
from tests.serving import Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
EXAMPLES = [
    (language, code, BLOCKS[number + 1][1])
    for number, (language, code) in enumerate(BLOCKS)
    if language in ("sh", "python")
]


def test_every_example_shows_what_comes_of_it() -> None:
    assert len(EXAMPLES) >= 12
    for number, (language, _) in enumerate(BLOCKS):
        if language in ("sh", "python"):
            assert BLOCKS[number + 1][0] in ("json", "text")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("language", "code", "shown"), EXAMPLES)
def test_an_example_gives_what_it_shows(language: str, code: str, shown: str, server: Server) -> None:
    here = code.replace("http://localhost:8000", server.url).replace(
        ".venv/bin/omnihear", f"{sys.executable} -m app.cli"
    )
    command = ["bash", "-euc", here] if language == "sh" else [sys.executable, "-c", here]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )

    assert result.returncode == 0, result.stderr
    words, expected = re.findall(r"\w+", result.stdout), re.findall(r"\w+", shown)
    # Times, token counts and request ids differ; deltas fall where they fall.
    assert difflib.SequenceMatcher(None, words, expected, autojunk=False).ratio() > 0.6, result.stdout
