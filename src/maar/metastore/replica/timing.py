"""How long a replica waits for what, and how often it looks."""

from __future__ import annotations

from typing import NamedTuple

from maar.model.policy import MINUTE_NS


class Timing(NamedTuple):
    """No settings: nobody has had to change these. Tests that cannot wait take other values."""

    catch_up_s: float = 10.0  # a reader waits so long for a replica that is behind its log
    pin_s: float = 2.0  # a leader that takes longer is about to be replaced; the caller asks again
    ask_peers_s: float = 2.0  # from one round of questions to the other replicas to the next
    stuck_s: float = 2.0  # a loop that has not come round for so long may not come round again
    settle_s: float = 0.2  # between two questions whether an append was stored
    unsettled_s: float = 5.0  # a leader that cannot find out what was stored for this long resigns
    clean_s: float = 5.0  # a part of the cleaner that found nothing to do looks again after this
    expire_ns: int = MINUTE_NS  # from one run of retention to the next
    drain_s: float = 15.0  # from the end of one look at the dead letters to the next
    snapshot_first_s: float = 10.0  # after the start of a term, if there is none to restore
    snapshot_look_s: float = 0.5  # between two looks whether a snapshot is due
    snapshot_backoff_s: float = 30.0  # after one that failed, and between pairs of hurried ones
    lost_log_s: float = 86_400.0  # the log that belongs to lost snapshots is kept so long


TIMING = Timing()
