"""A search service: documents indexed word by word, results sorted by rank. Memory is profiled too.

Run with the agent: python examples/search.py [server] [seconds between uploads]
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, defaultdict

import pyroscope

WORDS = tuple(f"{a}{b}{c}" for a in ("la", "ma", "va") for b in "aeiou" for c in ("r", "lt", "sch"))


class Index:
    """Words to documents; old documents leave when it is full."""

    def __init__(self) -> None:
        self.postings: dict[str, dict[int, int]] = defaultdict(dict)

    def add_document(self, document: int, words: list[str]) -> None:
        for word, count in Counter(words).items():
            self.postings[word][document] = count

    def drop_document(self, document: int) -> None:
        for found in self.postings.values():
            found.pop(document, None)


def tokenize(chance: random.Random) -> list[str]:
    text = " ".join(chance.choices(WORDS, k=1500))
    return [word.strip(".,").lower() for word in text.split(" ")]


def rank_results(index: Index, query: list[str]) -> list[tuple[float, int]]:
    scores: dict[int, float] = defaultdict(float)
    for word in query:
        found = index.postings[word]
        for document, count in found.items():
            scores[document] += count / (1 + len(found))
    return sort_by_score([(score, document) for document, score in scores.items()])


def sort_by_score(rows: list[tuple[float, int]]) -> list[tuple[float, int]]:
    for _ in range(5):  # as if five pages were asked for
        rows = sorted(rows, key=lambda row: (-row[0], row[1]))
    return rows


def answer_query(index: Index, chance: random.Random) -> None:
    with pyroscope.tag_wrapper({"endpoint": "/search"}):
        rank_results(index, chance.choices(WORDS, k=12))


def grow_index(index: Index, document: int, chance: random.Random) -> None:
    with pyroscope.tag_wrapper({"endpoint": "/index"}):
        index.add_document(document, tokenize(chance))
        index.drop_document(document - 600)


def main(server: str, upload_interval: int) -> None:
    pyroscope.configure(
        application_name="search",
        server_address=server,
        upload_interval=upload_interval,
        mem_enabled=True,
        tags={"region": "us", "version": "2.0.1"},
    )
    chance = random.Random(2)
    index = Index()
    document = 0
    while True:
        document += 1
        grow_index(index, document, chance)
        answer_query(index, chance)
        time.sleep(0.01)


def arguments(given: list[str]) -> tuple[str, int]:
    server = given[0] if given else "http://127.0.0.1:4040"
    return server, int(given[1]) if len(given) > 1 else 5


if __name__ == "__main__":
    main(*arguments(sys.argv[1:]))
