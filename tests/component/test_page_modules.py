"""The page's decisions that need no page: layout, search, formats, colours, the address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from support.page.chromium import chromium
from support.page.server import PageServer, serving

pytestmark = pytest.mark.component

Run = Callable[..., Any]
# total 100 = main 90 (self 10: b 30, a 50) + gc 10; b calls a again.
GRAPH = {
    "names": ["total", "main", "gc", "a", "b"],
    "levels": [
        ["0", "100", "0", "0"],
        ["0", "10", "10", "2", "0", "90", "10", "1"],
        ["20", "50", "50", "3", "0", "30", "5", "4"],
        ["75", "25", "25", "3"],
    ],
    "total": 100,
}


@pytest.fixture(scope="module")
def empty_page() -> Iterator[Page]:
    with serving(PageServer()) as server, chromium() as browser:
        page = browser.new_page(timezone_id="UTC", locale="en-GB")
        page.goto(f"{server.url}/ui/favicon.svg")
        yield page


@pytest.fixture
def run(empty_page: Page) -> Run:
    """Calls an exported function of a module, or a script that gets the module."""

    def call(module: str, script: str, *arguments: Any) -> Any:
        body = script if "=>" in script else f"(m, ...rest) => m.{script}(...rest)"
        return empty_page.evaluate(
            f"async ([path, args]) => ({body})(await import(path), ...args)",
            [f"/ui/{module}.js", list(arguments)],
        )

    return call


def test_deltas_and_strings_become_places_and_parents(run: Run) -> None:
    found = run(
        "layout",
        """(m, answer) => { const g = m.decode(answer); return {
          x: [...g.x], width: [...g.width], self: [...g.self], parent: [...g.parent],
          path: m.pathTo(g, 5).map((node) => m.nameOf(g, node)) }; }""",
        GRAPH,
    )
    assert found == {
        "x": [0, 0, 10, 20, 70, 75],
        "width": [100, 10, 90, 50, 30, 25],
        "self": [0, 10, 10, 50, 5, 25],
        "parent": [-1, 0, 0, 2, 2, 4],
        "path": ["total", "main", "b", "a"],
    }


def test_the_hit_test_agrees_with_a_plain_scan(run: Run) -> None:
    disagreements = run(
        "layout",
        """(m) => {
          let seed = 4711;
          const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
          const wrong = [];
          for (let round = 0; round < 40; round++) {
            const levels = Array.from({ length: 1 + random(4) }, () =>
              Array.from({ length: random(30) }, () => [random(3), 1 + random(9), 0, 0]).flat());
            const g = m.decode({ names: ['total'], levels, total: 1 });
            for (let level = -1; level <= levels.length; level++)
              for (let x = -1; x < 330; x += 0.5) {
                let scan = -1;
                for (let n = 0; n < g.count; n++)
                  if (g.level[n] === level && g.x[n] <= x && x < g.x[n] + g.width[n]) scan = n;
                if (scan !== m.nodeAt(g, level, x)) wrong.push([round, level, x]);
              }
          }
          return wrong;
        }""",
    )
    assert disagreements == []


@pytest.mark.parametrize(
    ("term", "value", "frames"),
    [("A", 100, 4), ("MAIN", 90, 1), ('"a"', 75, 2), ("b", 30, 1), ("gc", 10, 1), ("none", 0, 0)],
)
def test_a_match_inside_a_match_counts_once(run: Run, term: str, value: int, frames: int) -> None:
    script = """(m, answer, term) => {
      const found = m.search(m.decode(answer), term);
      return [found.value, found.frames]; }"""
    assert run("layout", script, GRAPH, term) == [value, frames]


def test_a_frame_is_found_again_by_its_path_in_another_answer(run: Run) -> None:
    later = {
        "names": ["total", "b", "a", "main"],
        "levels": [[0, 9, 0, 0], [0, 9, 0, 3], [0, 9, 0, 1], [0, 9, 9, 2]],
        "total": 9,
    }
    script = """(m, before, after) => { const [b, a] = [m.decode(before), m.decode(after)];
      return [...b.key.keys()].map((node) => m.findKey(a, m.keyText(b, node))); }"""
    assert run("layout", script, GRAPH, later) == [0, -1, 1, -1, 2, 3]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0, "nanoseconds", "0 s"),
        (640, "nanoseconds", "640 ns"),
        (1_500, "nanoseconds", "1.5 µs"),
        (12_340_000, "nanoseconds", "12.3 ms"),
        (90 * 10**9, "nanoseconds", "90 s"),
        (306 * 10**9, "nanoseconds", "5.1 min"),
        (5 * 10**13, "nanoseconds", "13.9 h"),
        (250, "milliseconds", "250 ms"),
        (512, "bytes", "512 B"),
        (1536, "bytes", "1.5 KiB"),
        (3 << 30, "bytes", "3 GiB"),
        (1204, "count", "1,204"),
        (1_234_567, "count", "1.23 M"),
    ],
)
def test_values_are_shown_in_their_unit(run: Run, value: int, kind: str, text: str) -> None:
    script = "(m, value, type) => m.formatValue(value, m.unitOf(type))"
    assert run("format", script, value, f"x:y:{kind}:p:{kind}") == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(0, "0%"), (1, "<0.01%"), (12_345, "1.23%"), (345_678, "34.6%"), (10**6, "100%")],
)
def test_small_shares_do_not_vanish(run: Run, part: int, text: str) -> None:
    assert run("format", "formatPercent", part, 10**6) == text


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("github.com/acme/cart.(*Cart).Price", "github.com/acme/cart"),
        ("slices.SortFunc[go.shape.[]example.com/x.T]", "slices"),
        ("runtime.mallocgc", "runtime"),
        ("java/util/HashMap.get", "java/util/HashMap"),
        ("com.acme.shop.Cart.price", "com.acme.shop"),
        ("std::vector<int>::push_back(int&&)", "std"),
        ("shop/cart/price.py compute", "shop/cart"),
        ("handle_request", "handle_request"),
    ],
)
def test_frames_are_coloured_by_package(run: Run, name: str, package: str) -> None:
    assert run("palette", "packageOf", name) == package


def test_the_state_survives_the_address_bar(run: Run) -> None:
    state = run("state", "(m) => ({ ...m.DEFAULTS })") | {
        "tenant": "a'b",
        "service": "x&y=z",
        "filter": 'a=~"b.*"',
        "range": "custom",
        "from": 1000,
        "until": 2000,
        "refresh": 30,
    }
    assert run("state", "(m, state) => m.parse(m.write(state))", state) == state


@pytest.mark.parametrize(
    "query",
    ["", "?range=never", "?from=9&until=3", "?from=x&until=1e400", "?refresh=1", "?tenant=+"],
)
def test_a_senseless_address_is_the_start_page(run: Run, query: str) -> None:
    assert run("state", "parse", query) == run("state", "(m) => ({ ...m.DEFAULTS })")


@pytest.mark.parametrize(
    ("service", "written", "selector"),
    [
        ("cart", "", '{service_name="cart"}'),
        ("cart", ' {region="eu",} ', '{service_name="cart", region="eu"}'),
        ("cart", 'a="b", c!="d"', '{service_name="cart", a="b", c!="d"}'),
        ('a"b\\c', "", '{service_name="a\\"b\\\\c"}'),
    ],
)
def test_the_selector_quotes_the_service_and_takes_braces_or_none(
    run: Run, service: str, written: str, selector: str
) -> None:
    assert run("state", "selector", service, written) == selector


@pytest.mark.parametrize(
    ("written", "offers"),
    [
        ("", ['a="1"', 'b="x, y"']),
        ("b", ['a="1"', 'b="x, y"']),
        ('{a="1", b', ['{a="1", b="x, y"']),
        ('b="x, y", ', ['b="x, y", a="1"']),
    ],
)
def test_a_suggestion_continues_what_is_written(run: Run, written: str, offers: list[str]) -> None:
    assert run("suggest", "suggestions", written, [["a", "1"], ["b", "x, y"]]) == offers


def test_bars_are_never_finer_than_agents_push_nor_more_than_fit(run: Run) -> None:
    minute = 60_000
    steps = [
        run("timeline", "stepFor", {"start": 0, "end": span * minute})
        for span in (5, 60, 360, 1440, 60 * 24 * 400)
    ]
    assert steps == [15, 30, 180, 600, 3 * 86_400]
