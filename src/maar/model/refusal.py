"""Why an entry, or an item of it, changes nothing."""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """Why an item changed nothing; each is a sentence for an operator."""

    NO_GENESIS = "the log has no genesis yet"
    SECOND_GENESIS = "the log has a genesis already"
    OLD_TERM = "a later term has begun"
    VERSION = "this version is not active"
    UNKNOWN_PLAN = "there is no such plan, or it was archived"
    STALE_TOKEN = "the lease is not held under this token any more"
    COMPLETED_BY_OTHER = "the plan was completed under another token"
    LEASE_LIVE = "another worker's lease is live"
    NOT_ELIGIBLE = "the plan cannot be handed out now"
    MUST_BE_ROLLED_BACK = "the plan has started and is removable: it has to be rolled back"
    ROLLBACK_PENDING = "a rollback of the plan is pending already"
    NOT_DEAD = "no attempt of the plan has left anything to roll back"
    REMOVABLE = "the plan is removable: it is rolled back, not divided or set aside"
    INPUT_GONE = "an input is not live any more"
    INPUT_OWNED = "an input belongs to another plan"
    INPUT_REPEATED = "an input is named twice, or there is none"
    INPUT_KEY = "an input is not of this plan's store, tenant, shard and level"
    RESULT_KIND = "the result is of another kind of plan"
    ACCOUNT = "the result does not account for every input profile"
    SHARE = "a tenant's profiles of a day are all missing from the result, or are more than came in"
    OUTPUT = "an output is not of this plan's store, shard, tenant or level"
    OUTPUT_KEY = "an output lists an object that this attempt did not write"
    OUTPUT_FILES = "an output lacks a file of its kind, or a file has no bytes or no location"
    OUTPUT_TAKEN = "an output has the id of another block"
    TOO_MANY = "a bound of the state is reached"
    NOT_RETIRED = "the block is not retired"
    NOT_DIVISIBLE = "the plan cannot be divided there"
    OUTDATED = "the state has moved on"
    NOT_SET_ASIDE = "the plan is neither excluded nor parked"
    NOT_FAILED = "the plan has not failed, or somebody works on it"
    TOO_YOUNG = "the block holds profiles newer than the boundary"
    RING = "the writers or their shards are not those of a ring"
    INCARNATION = "the log has or had this incarnation already, or adopts too many"
    NOT_ADOPTING = "the log is not adopting what the store holds"
    ADOPTING = "nothing is deleted until everything in the store was adopted"
    RETENTION_HELD = "retention is on hold until an operator releases it"
    UNEXPLAINED = (
        "passing time does not explain why the block is too old; an operator has to confirm"
    )
    HIDDEN = "the result holds profiles that were deleted"
    STILL_NEEDED = "something that the deletion applies to is left, or may still come"
    NOT_EXPIRED = "the block was not taken by retention, or not so lately that it can come back"
