"""Sums beyond 64 bits: counted exactly, and explained by a question that can be answered."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maar.model.labels import Labels
from maar.ports.reader.query import Matcher
from maar.query.decide.exact import integers, magnitude
from maar.query.decide.overflow import NAMED_MAX, Heavy, overflow, selector_text
from maar.query.decide.selector import parse_selector

MOST = 2**63 - 1


@given(st.lists(st.integers(-(2**100), 2**100), max_size=8))
@example([MOST])
@example([-MOST, 1])
@example([MOST, 1])
@example([-(2**63)])
@example([])
def test_sums_of_what_was_read_are_those_of_python(numbers: list[int]) -> None:
    sums = pa.chunked_array([pa.array(map(Decimal, numbers), pa.decimal128(38, 0))])
    values = integers(sums)
    assert values.tolist() == numbers
    assert int(values.sum()) == sum(numbers)
    fits = sum(map(abs, numbers)) <= MOST
    assert (values.dtype == np.int64) == fits, "the slow way is for the absurd only"


@given(st.lists(st.integers(-MOST, MOST)))
def test_magnitudes_are_exact(numbers: list[int]) -> None:
    assert magnitude(np.array(numbers, np.int64)) == sum(map(abs, numbers))


def series(**labels: str) -> Labels:
    return tuple(sorted({"service_name": "shop", **labels}.items()))


def heavy(labels: Labels, weight: int = MOST, name: str = "p") -> Heavy:
    return Heavy(name, "shop", "2026-11-17T02:00:00+00:00", labels, weight)


def said(heaviest: list[Heavy], *others: Labels, matchers: tuple[Matcher, ...] = ()) -> str:
    weight = sum(each.weight for each in heaviest) + len(others)
    labels = {*others, *(each.labels for each in heaviest)}
    return str(overflow(heaviest, weight=weight, series=labels, matchers=matchers))


def test_the_label_that_spares_the_most_others_is_named() -> None:
    bad = series(pod="a", region="eu", zone="eu-1")
    others = [series(pod="a", region="us"), series(pod="b", region="eu"), series(region="eu")]
    assert said([heavy(bad)], *others).endswith('selector {zone!="eu-1"}')


def test_what_was_asked_for_stays_in_the_selector() -> None:
    matchers = (Matcher("region", "=~", 'eu"-.*\\d'),)
    text = said([heavy(series(pod="a"))], series(pod="b"), matchers=matchers).partition("{")[2]
    assert parse_selector("{" + text) == (*matchers, Matcher("pod", "!=", "a"))


def test_only_as_many_are_named_as_have_to_go() -> None:
    rows = [heavy(series(pod=pod), weight, pod) for pod, weight in (("a", MOST), ("b", 9))]
    assert "b of shop" not in said(rows)
    assert "a of shop at 2026-11-17T02:00:00+00:00" in said(rows)


def test_five_are_shown_and_the_others_counted() -> None:
    rows = [heavy(series(pod=str(n)), MOST, f"p{n}") for n in range(9)]
    message = str(overflow(rows, weight=9 * MOST, series=set(), matchers=()))
    assert "p4 of shop at 2026-11-17T02:00:00+00:00 and 3 more. To get" in message
    assert "p5 " not in message


def test_without_a_label_that_tells_them_apart_there_is_only_time() -> None:
    assert said([heavy(series())], series()).endswith("ask for a time range without them")


def test_when_nobody_stands_out_a_narrower_question_helps() -> None:
    rows = [heavy(series(pod=str(n)), MOST, str(n)) for n in range(NAMED_MAX)]
    message = str(overflow(rows, weight=30 * MOST, series=set(), matchers=()))
    assert message.endswith("ask for a shorter time range or for fewer series")


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb", "ä", ""])
def test_a_selector_reads_back(value: str) -> None:
    matchers = (Matcher("a", "!=", value),)
    assert parse_selector(selector_text(matchers)) == matchers
