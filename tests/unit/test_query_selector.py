"""Selectors as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model.errors import InvalidInput
from maar.ports.reader.query import Matcher
from maar.query.decide.selector import parse_selector


@pytest.mark.parametrize("text", ["", "  ", "{}", " { } "])
def test_nothing_matches_everything(text: str) -> None:
    assert parse_selector(text) == ()


def test_all_operators_and_quotes_are_read() -> None:
    text = """ { a = "b" , c!='d',e=~`x\\.*`, f !~ "", otel.scope.name="x", } """
    assert parse_selector(text) == (
        Matcher("a", "=", "b"),
        Matcher("c", "!=", "d"),
        Matcher("e", "=~", "x\\.*"),
        Matcher("f", "!~", ""),
        Matcher("otel_scope_name", "=", "x"),
    )


def test_escapes_are_those_of_prometheus() -> None:
    text = r"""{a="q\"b\\n\n\t\x41\u00e4\U0001F600\101'", b='\'"', c=~"a\\.b"}"""
    assert [matcher.value for matcher in parse_selector(text)] == [
        "q\"b\\n\n\tAä😀A'",
        "'\"",
        "a\\.b",
    ]


def test_names_may_be_quoted_and_a_string_alone_names_the_profile() -> None:
    text = """{"service.name"="x", 'a'!="b", `c` =~ "d", "process_cpu",}"""
    assert parse_selector(text) == (
        Matcher("service_name", "=", "x"),
        Matcher("a", "!=", "b"),
        Matcher("c", "=~", "d"),
        Matcher("__name__", "=", "process_cpu"),
    )
    assert parse_selector('{"memory"}') == (Matcher("__name__", "=", "memory"),)


def test_the_peers_second_name_of_the_service_is_the_service() -> None:
    assert parse_selector('{__service_name__="a"}') == (Matcher("service_name", "=", "a"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('a="b"', "'{' was expected"),
        ("{", "a label name"),
        ("{a}", "one of ="),
        ("{a=}", "a value in quotes"),
        ("{a=b}", "a value in quotes"),
        ('{a="b}', "a value in quotes"),
        ('{a="b" c="d"}', "'}' was expected"),
        ('{a="b"} x', "nothing may follow"),
        ('{,a="b"}', "a label name"),
        ('{a=="b"}', "a value in quotes"),
        ('{1a="b"}', "a label name"),
        ('{"a" "b"}', "one of ="),
        ('{"a"', "one of ="),
        (r'{a="\q"}', "not an escape"),
        (r'{a="\ud800"}', "not a character"),
        ('{a="' + "x" * (16 << 10) + '"}', "more than the"),
        ("{" + ",".join(f'a{n}="b"' for n in range(65)) + "}", "more than 64"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_selector(text)


@given(st.text(max_size=60))
def test_any_text_gives_matchers_or_a_typed_error(text: str) -> None:
    for candidate in (text, "{" + text + "}", '{a="' + text + '"}'):
        try:
            parse_selector(candidate)
        except InvalidInput:
            pass


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
            st.sampled_from(["=", "!=", "=~", "!~"]),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        ),
        max_size=5,
    )
)
def test_what_is_written_is_read_back(matchers: list[tuple[str, str, str]]) -> None:
    def quoted(value: str) -> str:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    text = "{" + ", ".join(f"{name}{op}{quoted(value)}" for name, op, value in matchers) + "}"
    assert parse_selector(text) == tuple(Matcher(*matcher) for matcher in matchers)
