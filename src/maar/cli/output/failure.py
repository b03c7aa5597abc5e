"""How a command fails: one sentence for people, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

EXIT_REFUSED = 1  # the request will never succeed unchanged
EXIT_USAGE = 2  # the command line or a setting is wrong
EXIT_UNAVAILABLE = 3  # the same again may succeed
EXIT_INTERRUPTED = 130


class CommandFailed(Exception):
    """A command cannot do what it was asked; the message is a sentence."""

    def __init__(
        self,
        sentence: str,
        exit_code: int = EXIT_REFUSED,
        *,
        retry_after_s: float | None = None,
        answer: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.answer = answer  # what the server said beside the sentence
        self.retry_after_s = retry_after_s  # worth trying again at once, after so long
