import os
from pathlib import Path

import pytest

from benchmarks.gpu import GpuBusy


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of nvidia-smi's name; prints what a test writes into it, then waits to be ended."""
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return program


def write(program: Path, *lines: str) -> None:
    printed = "\n".join(f"echo '{line}'" for line in lines)
    program.write_text(f"#!/bin/sh\n{printed}\ntouch {program}.done\nexec sleep 60\n")
    program.chmod(0o755)


def wait_for(path: Path) -> None:
    while not path.exists():
        pass


def test_the_busiest_gpu_counts(fake_smi: Path) -> None:
    write(fake_smi, "0, 10", "1, 80", "0, 20", "1, 100", "1, [N/A]")

    with GpuBusy() as gpu:
        wait_for(fake_smi.with_suffix(".done"))

    assert gpu.share == pytest.approx(0.9)


def test_without_a_gpu_there_is_no_share(fake_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(fake_smi, "No devices were found")
    with GpuBusy() as without_device:
        wait_for(fake_smi.with_suffix(".done"))
    monkeypatch.setenv("PATH", "")
    with GpuBusy() as without_driver:
        pass

    assert (without_device.share, without_driver.share) == (None, None)
