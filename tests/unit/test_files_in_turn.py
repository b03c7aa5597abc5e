"""Test files in the order of their lengths, in worker processes: which of them goes where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.runs.files_in_turn import FilesInTurn


class Config:
    """What a schedule asks of pytest's."""

    option = type("Option", (), {"loadscopereorder": False})

    def __init__(self, processes: int) -> None:
        self._processes = ["popen"] * processes

    def getvalue(self, name: str) -> list[str]:
        assert name == "tx"
        return self._processes


class Process:
    """A worker process: the tests that it was sent, in order."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="w")
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, tests: list[int]) -> None:
        self.sent += tests

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    def __init__(self, processes: int, **files: int) -> None:
        self.tests = [f"{file}.py::{n}" for file, count in files.items() for n in range(count)]
        self.processes = [Process() for _ in range(processes)]
        config: Any = Config(processes)
        self.schedule = FilesInTurn(config)
        for process in self.processes:
            self._on(process, "add_node")
            self._on(process, "add_node_collection", self.tests)
        self.schedule.schedule()

    def _on(self, process: Any, name: str, *arguments: Any) -> None:
        getattr(self.schedule, name)(process, *arguments)

    def end(self, process: int, test: str) -> None:
        self._on(self.processes[process], "mark_test_complete", self.tests.index(test))

    def files(self, process: int) -> list[str]:
        sent = (self.tests[number].partition(".")[0] for number in self.processes[process].sent)
        return list(dict.fromkeys(sent))


def test_a_process_gets_its_next_file_as_its_last_test_begins() -> None:
    run = Run(2, a=3, b=3, c=2, d=2)
    assert (run.files(0), run.files(1)) == (["a"], ["b"])
    run.end(0, "a.py::0")
    assert run.files(0) == ["a"], "two of its tests are left: the other process may be faster"
    run.end(0, "a.py::1")
    assert run.files(0) == ["a", "c"], "without a next test it would not begin its last"


def test_only_the_last_file_waits_behind_a_test_that_is_a_file_by_itself() -> None:
    run = Run(2, alone=1, b=2, c=2, short=2, shortest=2)
    assert (run.files(0), run.files(1)) == (["alone", "shortest"], ["b"])
    for test in ("b.py::0", "b.py::1", "c.py::0"):
        run.end(1, test)
    assert (run.files(0), run.files(1)) == (["alone", "shortest"], ["b", "c", "short"])
    assert all(process.shutting_down for process in run.processes) is False
    run.end(1, "c.py::1")
    assert run.processes[1].shutting_down, "nothing is left to be given"
