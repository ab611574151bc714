"""The bars of every command: what is done, of how much, and when it will be all."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

console = Console(stderr=True)


class Bar:
    """One line that fills."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: float = 1, note: str = "") -> None:
        """So much more is done."""
        self._progress.update(self._task, advance=amount, note=note)


@contextmanager
def bar(title: str, total: float, done: float = 0) -> Iterator[Bar]:
    """Show a bar until the block ends; on a terminal it moves, in a log it is one line at the end."""
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        Remaining(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, progress.add_task("", total=total, completed=int(done), note=""))
