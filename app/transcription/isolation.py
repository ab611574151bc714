"""What a process that decodes is kept from: other processes' memory and network, privileges, and more than its share.

Bytes from strangers are given to libraries of C, so what runs them is to be worth little to whoever takes it over. All
of this works without privileges; what a machine does not allow (containers often forbid namespaces) is left out, and
`network` tells. Files are not hidden: a worker may read and write what the service's user may.
"""

import ctypes
import math
import os
import re
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

MEMORY_GROWTH: Final = 1 << 30  # bytes a worker may take beyond its libraries; a decode needs some tens of MiB
DESCRIPTORS: Final = 64  # a decode has a dozen open
NICENESS: Final = 5  # decoding is work in the background: the loop that answers and the engine that it feeds go first

# <linux/prctl.h>, <linux/sched.h>, <linux/capability.h>
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAP_DAC_OVERRIDE_AND_READ_SEARCH: Final = 1 << 1 | 1 << 2

_NETWORK: Final = "/proc/self/ns/net"


def confine() -> None:
    """Give up network and privileges, for good and for all processes that are forked from this one.

    To be called before a library starts a thread: a process with several cannot enter a user namespace.
    """
    libc = ctypes.CDLL(None)
    # The first needs CAP_SYS_ADMIN, the second a kernel that lets everybody have user namespaces.
    if libc.unshare(_CLONE_NEWNET) != 0:
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    # A service that runs as root may have its files in a folder of somebody else's; nothing else of root's is left.
    kept = _permitted() & _CAP_DAC_OVERRIDE_AND_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))  # effective, permitted, inheritable; twice
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # lost with the old credentials; operators want to see its memory


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ended. After `confine`, which undoes it.

    Args:
        parent: its process id; may have ended before this was called.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def limit() -> None:
    """Make this process safe to lose and unable to disturb its parent."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # native code prints now and then
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    os.nice(NICENESS)
    # A crash in a decoder is expected now and then; a core file would hold the caller's sound.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    pages = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if pages is not None:
        most = int(pages[1]) * 1024 + MEMORY_GROWTH
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def allow_processor_time(seconds: float) -> None:
    """Have the kernel kill this process once it has computed for so long from now, and a second.

    The limit of the kernel counts from the start of the process, so it is moved for each task. A task of one thread is
    ended by the clock before; this ends what computes in several, or goes on after its task.
    """
    most = math.ceil(time.process_time() + seconds) + 1
    with suppress(ValueError):  # above what the service itself may use
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def network() -> str:
    """Which network this process is in."""
    return str(Path(_NETWORK).readlink())


def _permitted() -> int:
    """Capabilities 0 to 31 that this process has."""
    found = re.search(r"^CapPrm:\s+([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 16) & 0xFFFFFFFF if found is not None else 0
