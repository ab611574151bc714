"""A process that has imported what decode workers need, and forks them.

A worker is killed whenever its client leaves, so workers have to be cheap: forked from here one takes 10 ms and shares
its libraries' pages, started afresh it takes a second of processor time.
"""

import atexit
import functools
import gc
import os
import signal
import socket
import sys
import threading
import warnings
from typing import Final

from app.transcription.isolation import confine, end_with

LONGEST_REASON: Final = 1000  # bytes of what is said in place of a worker
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # parallel over requests, not inside one


class Nursery:
    """The service's side. One serves all pools of a process; it ends when the process ends, however that ends."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def bear(self) -> socket.socket:
        """Ask for a worker; returns the end of a socket whose other end it has, or nobody where none could be made.

        Returns at once. Starts the process where there is none, or no longer; it answers a second later.

        Raises:
            OSError: the process cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                self._send_again(theirs)
            except OSError:
                ours.close()
                raise
        return ours

    def _send_again(self, theirs: socket.socket) -> None:
        try:
            self._send(theirs)
        except OSError:  # it has died, and those that it has borne with it
            self.close()
            self._send(theirs)

    def _send(self, theirs: socket.socket) -> None:
        if self._connection is None:
            self._connection = self._start()
        socket.send_fds(self._connection, [b"w"], [theirs.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            # Not by `subprocess`: it would be waited for, and nobody but the kernel ends this process.
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", __name__, str(os.getpid())],
                os.environ | _ONE_THREAD,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
            )
        return ours

    def close(self) -> None:
        """End it, and with it all its workers."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            os.kill(self._pid, signal.SIGKILL)  # a zombie or hung: it is ours until it is waited for
            os.waitpid(self._pid, 0)


@functools.cache
def nursery() -> Nursery:
    """The one of this process."""
    made = Nursery()
    atexit.register(made.close)
    return made


def main() -> None:
    """Fork a worker for each socket that arrives on descriptor 0, until the service closes its end."""
    confine()
    end_with(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole process group, it is the service's to act on
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel waits for the workers
    # onnxruntime starts a thread on import that only sleeps. Nothing that a worker uses waits for it.
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork.*", DeprecationWarning)
    from app.transcription import worker

    reason = b""
    try:
        worker.load()
    except Exception as error:
        # Told to whoever orders a worker. What libraries raise that are broken or missing is not bounded.
        reason = f"{type(error).__name__}: {error}".encode()[:LONGEST_REASON]
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared
    own = os.getpid()
    with socket.socket(fileno=0) as orders:
        while True:
            order, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
            if not order:
                return
            with socket.socket(fileno=descriptors[0]) as connection:
                if reason:
                    connection.sendall(reason)
                elif os.fork() == 0:
                    try:
                        end_with(own)
                        worker.serve(connection)
                    finally:
                        os._exit(0)


if __name__ == "__main__":
    main()
