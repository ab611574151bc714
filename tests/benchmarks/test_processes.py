import os
import subprocess
import sys

import numpy as np

from benchmarks.processes import Memory, PeakMemory, ProcessTree

WORK = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {WORK!r}])
idle = subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"], stdin=subprocess.PIPE)
input()
idle.communicate(b"end")
"""


def test_a_tree_counts_the_living_and_the_processor_time_of_the_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        tree = ProcessTree(parent.pid)

        processes = tree.processes()
        cpu_seconds = tree.cpu_seconds()
        memory, rss = tree.memory(), tree.rss()
        alone = processes[0].memory_info().rss
        parent.communicate(b"\n")

    assert len(processes) == 2
    assert 0.3 <= cpu_seconds < 60
    assert memory.rss >= rss > alone
    assert 0 < memory.pss < memory.rss
    assert parent.returncode == 0


def test_a_tree_that_has_ended_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        tree = ProcessTree(process.pid)
        process.communicate(b"\n")

    assert tree.processes() == []
    assert tree.cpu_seconds() == 0
    assert tree.memory() == Memory(0, 0)


def test_the_peak_is_kept_when_memory_is_given_back() -> None:
    tree = ProcessTree(os.getpid())
    before = tree.memory()
    more = 256 * 2**20

    with PeakMemory(tree) as memory:
        block = np.ones(more, np.uint8)
        while memory.peak.rss < before.rss + 0.9 * more:  # until the watching thread has looked
            assert len(block) == more
        del block

    assert tree.rss() < before.rss + 0.5 * more
    assert memory.peak.rss >= before.rss + 0.9 * more
    assert memory.peak.pss >= 0.9 * more  # no more: what libraries add depends on who else has them mapped
