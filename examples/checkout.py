"""A shop's checkout: baskets parsed from JSON, addresses checked by regular expressions.

Run with the agent: python examples/checkout.py [server] [seconds between uploads]
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from typing import Any

import pyroscope

ADDRESS = re.compile(
    r"^(?P<street>[\w .'-]+) (?P<number>\d+[a-z]?), (?P<zip>\d{4,5}) (?P<city>.+)$"
)
COUPON = re.compile(r"(?:[A-Z]{2,5}-)+\d{2,6}(?:-[A-Z0-9]+)*$")


def make_basket(chance: random.Random) -> str:
    items = [
        {"sku": f"SKU-{chance.randrange(10_000)}", "count": chance.randrange(1, 9), "price": 199}
        for _ in range(300)
    ]
    address = f"Maar Street {chance.randrange(1, 99)}b, 54550 Daun"
    return json.dumps({"items": items, "address": address, "coupons": ["EI-FEL-2026-X9"] * 20})


def parse_basket(text: str) -> dict[str, Any]:
    basket: dict[str, Any] = json.loads(text)
    return basket


def validate_address(text: str) -> bool:
    return all(ADDRESS.match(text) for _ in range(400))


def check_coupons(coupons: list[str]) -> int:
    return sum(bool(COUPON.match(coupon * 8)) for coupon in coupons for _ in range(20))


def price_basket(items: list[dict[str, int]]) -> int:
    total = 0
    for item in items * 12:
        total += item["count"] * item["price"]
    return total


def pay(total: int) -> str:
    receipt = [f"line {number}: {total % (number + 7)}" for number in range(4000)]
    return "\n".join(receipt)


def serve_order(endpoint: str, chance: random.Random) -> None:
    with pyroscope.tag_wrapper({"endpoint": endpoint}):
        basket = parse_basket(make_basket(chance))
        validate_address(basket["address"])
        check_coupons(basket["coupons"])
        total = price_basket(basket["items"])
        if endpoint == "/pay":
            pay(total)


def main(server: str, upload_interval: int) -> None:
    pyroscope.configure(
        application_name="checkout",
        server_address=server,
        upload_interval=upload_interval,
        tags={"region": "eu", "version": "1.4.2"},
    )
    chance = random.Random(1)
    while True:
        serve_order(chance.choice(("/basket", "/pay")), chance)
        time.sleep(0.02)


def arguments(given: list[str]) -> tuple[str, int]:
    server = given[0] if given else "http://127.0.0.1:4040"
    return server, int(given[1]) if len(given) > 1 else 5


if __name__ == "__main__":
    main(*arguments(sys.argv[1:]))
