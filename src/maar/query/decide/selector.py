"""Label selectors as people write them, {service_name="api", region=~"eu-.*"}, made into matchers.

The grammar is Prometheus': = != =~ !~, strings in double or single quotes or backticks, a trailing
comma allowed; a label's name may be quoted, and a string by itself is the profile's name.
Everything else is InvalidInput with the place where it went wrong.
"""

from __future__ import annotations

import re
from typing import NoReturn

from maar.model.errors import InvalidInput
from maar.model.labels import PROFILE_NAME, SERVICE_NAME, sanitize_name
from maar.ports.reader.query import Matcher
from maar.query.decide.select import SERVICE_TOO

TEXT_LENGTH_MAX = 16 << 10
MATCHERS_MAX = 64
QUOTES = "\"'`"

_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_OPERATOR = re.compile(r"=~|!~|!=|=")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'|`[^`]*`")
_NAME_OR_STRING = re.compile(f"{_NAME.pattern}|{_STRING.pattern}")
_ESCAPE = re.compile(
    r"\\(?:(?P<plain>[abfnrtv\\'\"])|x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})"
    r"|U(?P<U>[0-9A-Fa-f]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.))",
    re.DOTALL,
)
_PLAIN = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))


def parse_selector(text: str) -> tuple[Matcher, ...]:
    """The matchers of a selector; none for an empty text or {}."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidInput(
            f"the label selector has {len(text)} characters, more than the {TEXT_LENGTH_MAX} "
            "allowed",
            reason="selector",
        )
    return _Parser(text).selector() if text.strip() else ()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def selector(self) -> tuple[Matcher, ...]:
        matchers: list[Matcher] = []
        self._expect("{")
        while not self._take("}"):
            matchers.append(self._matcher())
            if not self._take(","):
                self._expect("}")
                break
        self._skip_space()
        if self._at < len(self._text):
            self._fail("nothing may follow the closing brace")
        if len(matchers) > MATCHERS_MAX:
            self._fail(f"there are more than {MATCHERS_MAX} conditions")
        return tuple(matchers)

    def _matcher(self) -> Matcher:
        name = self._match(_NAME_OR_STRING, "a label name")
        if name[0] in QUOTES:
            name = self._unquote(name)
            if self._sees(",}"):
                return Matcher(PROFILE_NAME, "=", name)
        operator = self._match(_OPERATOR, "one of = != =~ !~")
        value = self._unquote(self._match(_STRING, "a value in quotes"))
        name = sanitize_name(name)
        return Matcher(SERVICE_NAME if name == SERVICE_TOO else name, operator, value)

    def _unquote(self, text: str) -> str:
        return text[1:-1] if text[0] == "`" else _ESCAPE.sub(self._unescape, text[1:-1])

    def _unescape(self, match: re.Match[str]) -> str:
        if plain := match["plain"]:
            return _PLAIN[plain]
        if match["bad"] is not None:
            self._fail(f"\\{match['bad']} is not an escape")
        digits = match["x"] or match["u"] or match["U"]
        code = int(digits, 16) if digits else int(match["octal"], 8)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail(f"{match[0]} is not a character")
        return chr(code)

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        self._skip_space()
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(f"{what} was expected")
        self._at = match.end()
        return match[0]

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            self._fail(f"{sign!r} was expected")

    def _take(self, sign: str) -> bool:
        self._skip_space()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _sees(self, signs: str) -> bool:
        self._skip_space()
        return self._text[self._at : self._at + 1] in tuple(signs)

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _fail(self, why: str) -> NoReturn:
        shown = self._text if len(self._text) <= 80 else self._text[:77] + "..."
        raise InvalidInput(
            f"the label selector {shown!r} cannot be read at character {self._at + 1}: {why}; "
            'one looks like {service_name="api", region=~"eu-.*"}',
            reason="selector",
        )
