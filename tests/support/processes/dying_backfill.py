"""`maar backfill` whose tasks write their share and then hang, to be killed in the middle."""

from __future__ import annotations

import sys
import threading
from typing import Any

from maar.cli.main import run
from maar.runner import bulk
from maar.services.runs import Noted

_write_share = bulk.write_share


def hang_after_writing(*arguments: Any, **named: Any) -> Noted:
    """In a task: all is written, and nobody is told. A share without files does not keep a core."""
    done = _write_share(*arguments, **named)
    if done.result.outputs:
        threading.Event().wait()
    return done


if __name__ == "__main__":
    from support.processes import dying_backfill

    # By the name under which tasks can import it.
    bulk.write_share = dying_backfill.hang_after_writing
    sys.exit(run(sys.argv[1:]))
