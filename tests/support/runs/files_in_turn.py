"""Hands test files to worker processes one at a time, so that none waits behind a long one."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FilesInTurn(LoadFileScheduling):  # type: ignore[misc]
    """A process begins a test only when it knows the next: as its last one begins, and not before,
    it is given another file. That one has to wait; behind a test that is a file by itself, and may
    take minutes, it is the last one of the queue, where the short ones are.
    """

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        units = self.assigned_work[node].values()
        if any(len(unit) == 1 and not all(unit.values()) for unit in units):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
