"""Progress in a file or a pipe, where a bar that moves would be a line for each of its steps."""

import time
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, TaskID

SECONDS_BETWEEN_LINES = 10.0


class ProgressInLines(Progress):
    """Prints a line of a task when it is updated, now and then; the columns without the bar.

    Work that is quicker prints nothing. Other work also prints what it came to, unless it is `transient`.
    """

    def __init__(self, *columns: ProgressColumn, transient: bool = False, **how: Any) -> None:
        shown = [column for column in columns if not isinstance(column, BarColumn)]
        super().__init__(*shown, auto_refresh=False, transient=True, **how)
        self._last_line, self._tells_end = time.monotonic(), False
        self._is_transient = transient

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._print_when_due(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._print_when_due(task_id)

    def stop(self) -> None:
        self.live.stop()
        if self._tells_end:
            self._tells_end = False
            self.console.print(self.make_tasks_table(self.tasks))

    def _print_when_due(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line, self._tells_end = now, not self._is_transient
            self.console.print(self.make_tasks_table([self._tasks[task_id]]))
