"""A log with something in it."""

from __future__ import annotations

from maar.ports.metastore.log import Candidate, Head, Log, Term


async def fill(log: Log, count: int, size: int = 10, *, batch: int = 1) -> tuple[Term, Head]:
    term = await log.campaign(Candidate("one"))
    head = await log.head()
    for start in range(0, count, batch):
        log.hold(term)
        numbers = range(start, min(start + batch, count))
        bodies = [b"%d-" % n + b"x" * size for n in numbers]
        head = await log.append(bodies, term=term, head=head)
    return term, head
