"""What the commands make of their arguments, and of values for people."""

from __future__ import annotations

import click
import pytest

from maar.cli.commands.push import is_folded
from maar.cli.input.options import label_pair, selector
from maar.cli.output.show import bar, duration, percent, print_table, quantity, size
from maar.pprof.gzip import compress


def test_a_selector_holds_service_labels_and_more() -> None:
    assert selector("", (), "") == "{}"
    assert selector("shop", ("region=eu",), "") == '{service_name="shop",region="eu"}'
    assert selector("shop", (), '{pod=~"a.*"}') == '{service_name="shop",pod=~"a.*"}'
    assert selector("", (), 'pod!="x",') == '{pod!="x"}'


def test_quotes_in_a_label_cannot_end_the_matcher() -> None:
    assert selector('a"b\\', (), "") == '{service_name="a\\"b\\\\"}'


def test_a_label_may_hold_an_equals_sign_but_needs_a_name() -> None:
    assert label_pair("query=a=b") == ("query", "a=b")
    for wrong in ("region", "=eu"):
        with pytest.raises(click.BadParameter):
            label_pair(wrong)


def test_folded_text_is_told_from_pprof() -> None:
    assert is_folded(b"main;work 12\nmain;rest 3\n")
    assert is_folded(compress(b"main;work 12\n"))
    assert not is_folded(b"\x0a\x04\x08\x01\x10\x02")
    assert not is_folded(compress(b"\x0a\x04\x08\x01\x10\x02"))
    assert not is_folded(b"no counts here\n")
    assert not is_folded(b"")
    assert not is_folded(b"\x1f\x8b broken")


def test_long_folded_text_is_told_by_its_first_lines() -> None:
    assert is_folded(b"main;work 12\n" * 5000)


def test_values_are_shown_in_their_unit() -> None:
    assert quantity(1_500_000_000, "nanoseconds") == "1.50 s"
    assert quantity(3 << 20, "bytes") == "3.0 MiB"
    assert quantity(12345, "count") == "12,345"
    assert (size(12), size(2048)) == ("12 B", "2.0 KiB")
    assert [duration(s) for s in (7_776_000, 7200, 90, 2, 0.005, 0.00002)] == [
        "90.0 days", "2.0 h", "1.5 min", "2.00 s", "5.0 ms", "20 µs",
    ]  # fmt: skip
    assert (percent(1, 3), percent(1, 0)) == ("33.3%", "-")


def test_a_bar_has_a_fixed_width_and_grows() -> None:
    assert bar(0, 4) == "    "
    assert bar(1, 4) == "████"
    assert bar(0.5, 4) == "██  "
    assert len(bar(0.33, 4)) == 4
    assert bar(7, 4) == "████"


def test_names_in_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("function",), [("[vdso]",), ("call[/red]",)])
    assert capsys.readouterr().out.split() == ["function", "[vdso]", "call[/red]"]
