"""The page in a real browser: what a reader sees, and what the address bar keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect

from support.page.chromium import chromium
from support.page.server import CPU, MEMORY, PageServer, Sample, serving

pytestmark = [pytest.mark.component, pytest.mark.long(40)]

ROW = 21  # frames.js
PATIENCE_MS = 20_000  # for a busy machine; an idle one needs a hundredth
DESKTOP: Any = {"viewport": {"width": 1400, "height": 900}, "reduced_motion": "reduce"}
SECOND = 10**9
Visit = Callable[..., Page]
HOSTILE = '<img src=x onerror="window.hurt=1"></script>\'--\u202eevil'
SHOP = [
    Sample("checkout", "main;serve;render", 60 * SECOND, labels=(("region", "eu"),)),
    Sample("checkout", "main;serve;db/sql.(*DB).query", 30 * SECOND, labels=(("region", "us"),)),
    Sample("checkout", "main;idle", 10 * SECOND, labels=(("region", "us"),)),
    Sample("checkout", "main;cache", 3 << 20, type=MEMORY),
    Sample("search", "main;rank", 5 * SECOND),
]


def wide_and_deep() -> list[Sample]:
    """2,000 stacks of 50 frames below three shared ones: 100,000 frames of their own."""
    return [
        Sample("huge", ";".join(["a", "b", "c", *(f"p{n % 7}.f{n}_{d}" for d in range(50))]), 1 + n)
        for n in range(2000)
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    tenants = {
        "anonymous": SHOP,
        "huge": wide_and_deep(),
        "hostile": [Sample(HOSTILE, f"main;{HOSTILE}", SECOND)],
    }
    with serving(PageServer(samples=tenants)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """One for all: a context and a process of the browser for each test took half of the CPU."""
    context = browser.new_context(**DESKTOP)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page
    context.close()


@pytest.fixture
def page(tab: Page, server: PageServer) -> Iterator[Page]:
    """A page whose console must stay silent; refused requests are the server's to report."""
    server.asked.clear()
    server.broken.clear()
    complaints: list[str] = []

    def hear_error(error: Error) -> None:
        complaints.append(str(error))

    def hear_line(line: ConsoleMessage) -> None:
        if line.type == "error":
            complaints.append(line.text)

    tab.on("pageerror", hear_error)
    tab.on("console", hear_line)
    yield tab
    leave(tab)
    tab.remove_listener("pageerror", hear_error)
    tab.remove_listener("console", hear_line)
    loud = [text for text in complaints if not text.startswith("Failed to load resource")]
    assert loud == [], "the browser's console has errors"


def leave(page: Page) -> None:
    """Nothing of a test is left for the next: what the page keeps, and what the test has set."""
    if page.url.startswith("http"):
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.goto("about:blank")
    page.unroute_all(behavior="wait")
    page.context.clear_cookies()
    page.context.clear_permissions()
    page.mouse.move(0, 0)
    page.set_viewport_size(DESKTOP["viewport"])
    page.emulate_media(color_scheme="light", reduced_motion="reduce")


@pytest.fixture
def visit(page: Page, server: PageServer) -> Visit:
    def go(query: str = "") -> Page:
        page.goto(f"{server.url}/{query}")
        page.wait_for_selector("body:not(.busy)")
        return page

    return go


def hover(page: Page, *, row: int, part: float) -> None:
    x, y = spot(page, row=row, part=part)
    page.mouse.move(x, y)


def click(page: Page, *, row: int, part: float) -> None:
    x, y = spot(page, row=row, part=part)
    page.mouse.click(x, y)


def spot(page: Page, *, row: int, part: float) -> tuple[float, float]:
    box = page.locator("#flame-canvas").bounding_box()
    assert box is not None
    return box["x"] + part * box["width"], box["y"] + row * ROW + ROW / 2


def picture(page: Page) -> str:
    return str(page.evaluate("document.getElementById('flame-canvas').toDataURL()"))


def asked_of(page: Page) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def test_services_are_listed_and_the_first_one_is_shown(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#services button")).to_have_text(["checkout", "search"])
    expect(page.get_by_role("heading", name="checkout")).to_be_visible()
    expect(page.locator("#types label")).to_have_text(["CPU", "Memory in use"])
    expect(page.locator("#flame-total")).to_have_text("100 s in 6 frames")
    expect(page.locator("#timeline-total")).to_have_text("100 s in the last hour, 30 s a bar")
    expect(page).to_have_title("checkout · maar")


def test_choosing_a_service_and_a_type_asks_for_them(visit: Visit, server: PageServer) -> None:
    page = visit()
    page.get_by_text("Memory in use").click()
    expect(page.locator("#flame-total")).to_have_text("3 MiB in 3 frames")
    page.get_by_role("button", name="search", exact=True).click()
    expect(page.locator("#flame-total")).to_have_text("5 s in 3 frames")
    assert server.asked[-1][1]["labelSelector"] == '{service_name="search"}'
    assert server.asked[-1][1]["profileTypeID"] == CPU
    page.go_back()
    expect(page.locator("#flame-total")).to_have_text("3 MiB in 3 frames")


def test_the_graph_is_painted_root_on_top(visit: Visit) -> None:
    page = visit()
    colours = page.evaluate(
        """(row) => {
          const canvas = document.getElementById('flame-canvas');
          const context = canvas.getContext('2d');
          const at = (x, y) => [...context.getImageData(x * canvas.width, y, 1, 1).data].join();
          const painted = [0, 1, 2, 3].map((level) => at(0.97, level * row + 3));
          return [...painted, at(0.02, 3 * row + 3)];
        }""",
        ROW,
    )
    assert len(set(colours[:4])) == 4, "total, main, serve and render have colours of their own"
    assert colours[4] == "0,0,0,0", "nothing lies below a leaf"


def test_hovering_tells_name_self_total_and_percent(visit: Visit) -> None:
    page = visit()
    hover(page, row=3, part=0.9)
    expect(page.locator("#tip-name")).to_have_text("render")
    expect(page.locator("#tip-total")).to_have_text("60 s · 60%")
    expect(page.locator("#tip-self")).to_have_text("60 s · 60%")
    hover(page, row=2, part=0.5)
    expect(page.locator("#tip-name")).to_have_text("serve")
    expect(page.locator("#tip-total")).to_have_text("90 s · 90%")
    expect(page.locator("#tip-self")).to_have_text("0 s · 0%")
    hover(page, row=3, part=0.02)
    expect(page.locator("#tip")).to_be_hidden()


def test_a_click_zooms_and_the_breadcrumb_leads_back(visit: Visit) -> None:
    page = visit()
    whole = picture(page)
    click(page, row=2, part=0.5)
    expect(page.locator("#crumbs li")).to_have_text(["total", "main", "serve"])
    assert picture(page) != whole
    hover(page, row=3, part=0.1)  # was idle's empty place; the zoomed frame's first child now
    expect(page.locator("#tip-name")).to_have_text("db/sql.(*DB).query")
    expect(page.locator("#tip-part")).to_have_text("33.3%")
    page.locator("#crumbs").get_by_text("main").click()
    expect(page.locator("#crumbs li")).to_have_text(["total", "main"])
    page.mouse.move(0, 0)
    page.keyboard.press("Escape")
    expect(page.locator("#crumbs")).to_be_hidden()
    assert picture(page) == whole


def test_searching_highlights_and_tells_the_share(visit: Visit) -> None:
    page = visit()
    whole = picture(page)
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("QUERY")
    expect(page.locator("#matched")).to_have_text("30% matched")
    assert picture(page) != whole
    page.keyboard.press("Escape")
    expect(page.locator("#search")).to_have_value("")
    assert picture(page) == whole
    page.fill("#search", "nowhere")
    expect(page.locator("#matched")).to_have_text("no match")


def test_the_table_sorts_and_a_click_shows_the_function_in_the_graph(visit: Visit) -> None:
    page = visit()
    names = page.locator("#top tbody .name")
    expect(names.first).to_have_text("render")
    page.get_by_role("button", name="Total").click()
    expect(names.first).to_have_text("main")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Total")
    page.get_by_title("serve", exact=True).click()
    expect(page.locator("#search")).to_have_value('"serve"')
    expect(page.locator("#matched")).to_have_text("90% matched")
    expect(page.locator("tr.picked .name")).to_have_text("serve")


def test_the_label_filter_narrows_the_answer(visit: Visit, server: PageServer) -> None:
    page = visit()
    page.fill("#filter", '{region="us"}')
    page.keyboard.press("Enter")
    expect(page.locator("#flame-total")).to_have_text("40 s in 5 frames")
    assert server.asked[-1][1]["labelSelector"] == '{service_name="checkout", region="us"}'
    page.fill("#filter", 'region="mars"')
    page.keyboard.press("Enter")
    expect(page.locator("#flame-empty")).to_contain_text("loosen the label filter")


def test_the_filter_offers_the_labels_of_the_service(visit: Visit) -> None:
    page = visit("?service=checkout")
    page.locator("#filter").focus()
    offers = page.locator("#labels option")
    expect(offers).to_have_count(2)
    expect(offers.first).to_have_attribute("value", 'region="eu"')


def test_dragging_over_the_timeline_selects_a_sub_range(visit: Visit, server: PageServer) -> None:
    page = visit("?range=6h")
    drawn = [body for method, body in server.asked if method == "SelectMergeStacktraces"][-1]
    start, end = drawn["start"], drawn["end"]
    assert end - start == 6 * 3_600_000
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40, steps=3)
    expect(page.locator("#band")).to_be_visible()
    page.mouse.up()
    expect(page.locator("#range")).to_have_value("custom")
    page.wait_for_selector("body:not(.busy)")
    chosen = [body for method, body in server.asked if method == "SelectMergeStacktraces"][-1]
    assert chosen["start"] == pytest.approx(start + (end - start) * 0.25, abs=60_000)
    assert chosen["end"] == pytest.approx(start + (end - start) * 0.75, abs=60_000)


def test_a_custom_range_upside_down_is_refused_with_a_sentence(visit: Visit) -> None:
    page = visit()
    page.select_option("#range", "custom")
    page.fill("#from", "2026-01-02T00:00:00")
    page.fill("#until", "2026-01-01T00:00:00")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("ends before it begins")
    page.fill("#from", "2026-01-01T00:00:00")
    page.fill("#until", "2026-01-02T00:00:00")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_selector("body:not(.busy)")
    asked = asked_of(page)
    assert int(asked["until"]) - int(asked["from"]) == 86_400_000


def test_the_address_restores_everything(visit: Visit, server: PageServer) -> None:
    page = visit("?range=15m&refresh=60&sort=total")
    page.fill("#filter", 'region="us"')
    page.keyboard.press("Enter")
    expect(page.locator("#flame-total")).to_have_text("40 s in 5 frames")
    click(page, row=2, part=0.9)
    page.fill("#search", "sql")
    expect(page.locator("#crumbs li").last).to_have_text("serve")
    expect(page.locator("#matched")).to_have_text("75% matched")
    before, address = picture(page), page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#crumbs li").last).to_have_text("serve")
    expect(page.locator("#matched")).to_have_text("75% matched")
    expect(page.locator("#range")).to_have_value("15m")
    expect(page.locator("#every")).to_have_value("60")
    expect(page.locator("#filter")).to_have_value('region="us"')
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Total")
    assert page.url == address
    page.mouse.move(0, 0)
    assert picture(page) == before


def test_an_empty_lake_says_what_to_do(visit: Visit, server: PageServer) -> None:
    server.status["profiles_added"] = 0
    page = visit("?tenant=nobody")
    server.status["profiles_added"] = 1204
    expect(page.get_by_role("heading", name="No profiles yet")).to_be_visible()
    expect(page.locator(".snippet").first).to_contain_text(f'server_address="{server.url}"')
    expect(page.locator(".snippet").first).to_contain_text('tenant_id="nobody"')
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").nth(1).click()
    expect(page.get_by_text("Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "maar push profile.pb.gz --service my-service --tenant nobody"


def test_a_tenant_from_the_address_stays_one_word_in_the_snippets(visit: Visit) -> None:
    page = visit("?tenant=it's(me)")
    expect(page.locator(".snippet").nth(1)).to_contain_text(r"--tenant 'it'\''s(me)'")
    expect(page.locator(".snippet").nth(2)).to_contain_text(r"-H 'X-Scope-OrgID: it'\''s(me)'")


def test_a_range_or_service_without_profiles_is_told_apart_from_an_empty_lake(visit: Visit) -> None:
    page = visit("?tenant=nobody&range=5m")
    expect(page.locator("#empty h1")).to_have_text(
        "No profiles of tenant “nobody” in the last 5 minutes"
    )
    page = visit("?service=gone")
    expect(page.locator("#empty h1")).to_have_text("No profiles of gone in the last hour")
    page.get_by_role("button", name="checkout").click()
    expect(page.locator("#flame-total")).to_have_text("100 s in 6 frames")


def test_the_servers_sentence_is_shown_until_it_answers_again(
    visit: Visit, server: PageServer
) -> None:
    server.broken["anonymous"] = "the selector '{x}' has no operator after 'x'"
    page = visit()
    expect(page.get_by_role("alert")).to_contain_text("the selector '{x}' has no operator")
    server.broken.clear()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#flame-total")).to_have_text("100 s in 6 frames")
    expect(page.get_by_role("alert")).to_be_empty()


def test_nothing_of_one_tenant_stays_under_the_name_of_another(
    visit: Visit, server: PageServer
) -> None:
    server.broken["acme"] = "tenant acme may not read"
    page = visit("?service=checkout")
    page.fill("#tenant", "acme")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("tenant acme may not read")
    expect(page.locator("#view")).to_be_hidden()
    expect(page.locator("#services li")).to_have_count(0)
    assert "service" not in asked_of(page)


def test_a_tenant_that_no_header_can_carry_is_refused_with_a_sentence(visit: Visit) -> None:
    page = visit("?tenant=caf\u00e9\u2192")
    expect(page.get_by_role("alert")).to_contain_text("This tenant name cannot be sent")


def test_a_server_that_is_away_is_named_and_the_picture_stays(visit: Visit) -> None:
    page = visit()
    page.route("**/querier.v1.QuerierService/*", lambda route: route.abort())
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_role("alert")).to_contain_text("maar cannot be reached at http://127.0.0.1")
    expect(page.locator("#flame-total")).to_have_text("100 s in 6 frames")


def test_hostile_names_are_shown_as_text(visit: Visit) -> None:
    page = visit("?tenant=hostile")
    expect(page.locator("#services button")).to_have_text(HOSTILE)
    hover(page, row=2, part=0.5)
    expect(page.locator("#tip-name")).to_have_text(HOSTILE)
    click(page, row=2, part=0.5)
    expect(page.locator("#crumbs li").last).to_have_text(HOSTILE)
    page.locator("#top tbody button").first.click()
    expect(page.locator("#matched")).to_have_text("100% matched")
    assert page.evaluate("window.hurt") is None
    assert page.locator("main img, main script, nav img").count() == 0


def test_a_hundred_thousand_frames_stay_quick(visit: Visit) -> None:
    page = visit("?tenant=huge")
    expect(page.locator("#flame-total")).to_contain_text("100 k frames")
    spent = page.evaluate(
        """async () => {
          const { decode, nodeAt, search } = await import('/ui/layout.js');
          const { drawFrames } = await import('/ui/frames.js');
          const { Api } = await import('/ui/api.js');
          const now = Date.now();
          const answer = await new Api('huge').flameGraph({
            type: 'process_cpu:cpu:nanoseconds:cpu:nanoseconds',
            selector: '{service_name="huge"}', start: now - 1000, end: now });
          const once = (work) => {
            const start = performance.now();
            work();
            return performance.now() - start;
          };
          const timed = (work) => Math.min(...[1, 2, 3].map(() => once(work)));
          let graph, painted;
          const context = document.createElement('canvas').getContext('2d');
          const view = { window: [0, answer.total], width: 1200, height: 700, top: 0, focus: 0,
            matches: null, dark: false, ink: '#000', match: '#f00', font: 'serif' };
          return {
            decode: timed(() => { graph = decode(answer); }),
            draw: timed(() => { painted = drawFrames(context, graph, view); }),
            search: timed(() => search(graph, 'f1')),
            hit: timed(() => { for (let i = 0; i < 10000; i++) nodeAt(graph, i % 50, i); }),
            frames: graph.count, painted,
          };
        }"""
    )
    assert spent["frames"] > 100_000
    assert spent["painted"] <= 1700 * (700 // ROW + 1), "painting is bounded by pixels"
    # Generous, and the best of three: a busy machine may be ten times slower than these need.
    assert spent["decode"] < 1500
    assert spent["draw"] < 1500
    assert spent["search"] < 1000
    assert spent["hit"] < 500
    page.locator("#flame").evaluate("(scroller) => { scroller.scrollTop = 1e6; }")
    assert page.evaluate("document.getElementById('flame-canvas').height") < 1500


def test_the_graph_can_be_walked_by_keyboard(visit: Visit) -> None:
    page = visit()
    page.locator("#flame-canvas").focus()
    for key, name in (
        ("ArrowDown", "total"),
        ("ArrowDown", "main"),
        ("ArrowDown", "serve"),
        ("ArrowLeft", "idle"),
        ("ArrowRight", "serve"),
        ("ArrowDown", "render"),
        ("ArrowUp", "serve"),
    ):
        page.keyboard.press(key)
        expect(page.locator("#tip-name")).to_have_text(name)
    page.keyboard.press("Enter")
    expect(page.locator("#crumbs li").last).to_have_text("serve")


def test_it_refreshes_by_itself_and_keeps_the_zoom(
    page: Page, visit: Visit, server: PageServer
) -> None:
    page.clock.install()
    visit("?refresh=10")
    click(page, row=2, part=0.5)
    expect(page.locator("#crumbs li").last).to_have_text("serve")
    server.asked.clear()
    page.clock.run_for(10_500)
    expect(page.locator("#crumbs li").last).to_have_text("serve")
    page.wait_for_selector("body:not(.busy)")
    assert sorted(method for method, _ in server.asked) == [
        "SelectMergeStacktraces",
        "SelectSeries",
        "Series",
    ]


def test_the_strip_tells_the_state_of_the_lake(visit: Visit) -> None:
    strip = visit().locator("#status")
    expect(strip).to_contain_text("1,204 profiles received")
    expect(strip).to_contain_text(re.compile(r"L0 12\s*L1 3"))
    expect(strip).to_contain_text("41 compactions completed")
    expect(strip).to_contain_text("backlog 15 blocks, oldest 41 s")
    expect(strip.locator(".warn")).to_have_count(0)


def test_the_strip_tells_what_wants_a_person(
    server: PageServer, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled = {
        "running": 2,
        "levels": [{**level, "held": 4} for level in server.status["levels"]],
        "profiles_quarantined": 5,
        "blocked": ["block 1 is kept: its output is missing", "so is block 2"],
        "retention": {"trouble": "the clock is a year ahead"},
    }
    monkeypatch.setattr(server, "status", {**server.status, **troubled})
    strip = visit().locator("#status")
    expect(strip).to_contain_text("2 running")
    warnings = strip.locator(".warn")
    expect(warnings).to_have_text(
        [
            "8 blocks held back",
            "5 profiles in quarantine",
            "2 deletions blocked",
            "check retention's clock",
        ]
    )
    expect(warnings.nth(2)).to_have_attribute("title", "block 1 is kept: its output is missing")
    expect(warnings.nth(3)).to_have_attribute("title", "the clock is a year ahead")


def test_it_follows_the_colour_scheme_without_a_reload(visit: Visit) -> None:
    page = visit()
    light = picture(page)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(243, 246, 245)"
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.wait_for_function(
        "(light) => document.getElementById('flame-canvas').toDataURL() !== light", arg=light
    )
    assert page.evaluate(ground) == "rgb(11, 20, 23)"


def test_a_phone_needs_no_sideways_scrolling_and_every_field_has_a_name(visit: Visit) -> None:
    page = visit()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, select')]
          .filter((field) => !field.getAttribute('aria-label'))
          .filter((field) => ![...field.labels].some((label) => label.textContent.trim()))
          .map((field) => field.id)"""
    )
    assert nameless == []
