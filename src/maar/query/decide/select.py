"""Which datasets a query touches, and what its matchers are about. Decisions only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from maar.model.block import BlockMeta, Dataset, Kind
from maar.model.errors import InvalidInput
from maar.model.ids import BlockId, TenantId
from maar.model.labels import PROFILE_NAME, SERVICE_NAME, Labels
from maar.model.predicate import Mask
from maar.model.time import TimeRange
from maar.ports.reader.query import Matcher

PROFILE_TYPE = "__profile_type__"
SERVICE_TOO = "__service_name__"  # as Pyroscope's clients also call the service
NO_MASKS: Mapping[BlockId, tuple[Mask, ...]] = {}
PATTERNS = ("=~", "!~")
OPERATORS = ("=", "!=", *PATTERNS)

# Labels that are parts of the profile type's id, in its order.
TYPE_FIELDS = (PROFILE_NAME, "__type__", "__unit__", "__period_type__", "__period_unit__")
TYPE_LABELS = (PROFILE_TYPE, *TYPE_FIELDS)
DATASET_LABELS = (
    SERVICE_NAME,
    SERVICE_TOO,
    *TYPE_LABELS,
)  # what the index knows without opening a file


@dataclass(frozen=True, slots=True)
class Parts:
    """What to read. Their order is fixed: of a profile in two parts, the first one counts."""

    blocks: tuple[BlockMeta, ...]
    raw: tuple[tuple[BlockMeta, tuple[Dataset, ...]], ...]  # level 0, to be decoded
    quarantined: tuple[BlockMeta, ...]
    datasets: tuple[Dataset, ...]  # of blocks and level 0
    samples: int  # about as many, as if all profiles of a part had equally many
    masks: Mapping[BlockId, tuple[Mask, ...]] = field(default_factory=dict)  # deleted of a part

    @property
    def count(self) -> int:
        return len(self.blocks) + len(self.raw)


def parts_of(
    blocks: Iterable[BlockMeta],
    *,
    tenant: TenantId,
    time: TimeRange,
    service: str = "",
    masks: Mapping[BlockId, tuple[Mask, ...]] = NO_MASKS,
) -> Parts:
    """The parts that may hold profiles of a tenant (and a service) in a time range."""
    ordered = sorted(blocks, key=lambda meta: (-meta.level, meta.id))
    whole: list[BlockMeta] = []
    raw: list[tuple[BlockMeta, tuple[Dataset, ...]]] = []
    quarantined: list[BlockMeta] = []
    found: list[Dataset] = []
    samples = 0
    for meta in ordered:
        datasets = datasets_of(meta, tenant=tenant, time=time, service=service)
        if hiding := masks.get(meta.id):
            datasets = [each for each in datasets if not _is_hidden(each, time, hiding)]
        if not datasets:
            continue
        if meta.kind is Kind.QUARANTINE:
            quarantined.append(meta)
            continue
        if meta.kind is Kind.BLOCK:
            whole.append(meta)
        else:
            raw.append((meta, tuple(datasets)))
        found += datasets
        profiles = sum([dataset.profiles for dataset in datasets])
        samples += meta.samples * profiles // max(meta.profiles, 1)
    touched = [*whole, *(meta for meta, _ in raw), *quarantined]
    return Parts(
        blocks=tuple(whole),
        raw=tuple(raw),
        quarantined=tuple(quarantined),
        datasets=tuple(found),
        samples=samples,
        masks={meta.id: masks[meta.id] for meta in touched if meta.id in masks},
    )


def _is_hidden(dataset: Dataset, time: TimeRange, masks: Iterable[Mask]) -> bool:
    """Whether all that a dataset may have in a time range was deleted, perhaps in several steps."""
    next_ns = max(dataset.min_time_ns, time.start_ns)
    last_ns = min(dataset.max_time_ns, time.end_ns - 1)
    mine = [mask for mask in masks if mask.names(dataset.tenant, dataset.service)]
    for mask in sorted(mine, key=lambda mask: mask.from_ns):
        if mask.from_ns <= next_ns:
            next_ns = max(next_ns, mask.until_ns)
    return next_ns > last_ns


def datasets_of(
    meta: BlockMeta, *, tenant: TenantId, time: TimeRange, service: str = ""
) -> list[Dataset]:
    start_ns, end_ns = time.start_ns, time.end_ns
    return [
        dataset
        for dataset in meta.datasets
        if dataset.tenant == tenant
        and (not service or service == dataset.service)
        and dataset.min_time_ns < end_ns  # as TimeRange.overlaps: there may be many thousands
        and dataset.max_time_ns >= start_ns
    ]


def service_of(matchers: Iterable[Matcher]) -> str:
    """The one service that can match, or '' when there may be several."""
    return next(
        (m.value for m in matchers if m.name == SERVICE_NAME and m.op == "=" and m.value), ""
    )


def check_matchers(matchers: Iterable[Matcher]) -> tuple[Matcher, ...]:
    for matcher in matchers:
        if matcher.op not in OPERATORS:
            raise InvalidInput(
                f"{matcher.op!r} is not an operator; use one of {' '.join(OPERATORS)}",
                reason="selector",
            )
    return tuple(matchers)


def profile_type_of(text: str) -> str:
    """A type as it is stored; the peer's sixth part, 'delta', says nothing that we keep.

    Parts may be empty, and a colon may be within one: whatever was admitted can be asked for.
    """
    bare = text.removesuffix(":delta") if text.count(":") > 4 else text
    if bare.count(":") < 4:
        raise InvalidInput(
            f"{text[:200]!r} is not a profile type: it has five parts, as in "
            "process_cpu:cpu:nanoseconds:cpu:nanoseconds",
            reason="profile_type",
        )
    return bare


def dataset_labels(service: str, profile_type: str) -> dict[str, str]:
    """The labels that follow from where a value is kept."""
    fields = profile_type.split(":")
    return {
        SERVICE_NAME: service,
        SERVICE_TOO: service,
        PROFILE_TYPE: profile_type,
        **dict(zip(TYPE_FIELDS, fields, strict=False)),
    }


def pick(labels: dict[str, str], names: tuple[str, ...]) -> Labels:
    """Those labels that have one of the names (any, when none is given) and a value."""
    wanted = names or tuple(labels)
    return tuple(sorted((name, labels[name]) for name in set(wanted) if labels.get(name)))
