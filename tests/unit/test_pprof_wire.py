"""The compiled walk, as a piece of software to install and start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import caching

from maar.pprof import wire
from maar.pprof.kernel import kernel


def doubled(number: int) -> int:
    return number * 2


def test_where_no_cache_can_be_written_each_process_compiles_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert kernel(doubled)(21) == 42


def test_the_walk_is_cached_beside_its_source_or_where_the_environment_says() -> None:
    assert wire.walk._cache.cache_path
    assert wire.walk.targetoptions["nogil"]


def test_a_process_that_finds_all_compiled_loads_no_compiler(tmp_path: Path) -> None:
    """Its tables, of which those for linear algebra are a part, are not needed to load code."""
    file = tmp_path / "halved.py"
    file.write_text(
        "import sys\n"
        "from maar.pprof.kernel import kernel, allocating_kernel\n"
        "import numpy as np\n"
        "@kernel\n"
        "def total(numbers):\n"
        "    found = 0\n"
        "    for number in numbers:\n"
        "        found += number\n"
        "    return found\n"
        "@allocating_kernel\n"
        "def halved(numbers):\n"
        "    made = np.zeros(numbers.size, np.int64)\n"
        "    for place in range(numbers.size):\n"
        "        made[place] = numbers[place] // 2\n"
        "    return made\n"
        "assert halved(np.array([4, 7])).tolist() == [2, 3]\n"
        "assert total(np.array([4, 7])) == 11\n"
        "print('numba.np.linalg' in sys.modules)\n"
    )

    def said() -> str:
        return subprocess.check_output([sys.executable, file], text=True)

    assert said() == "True\n", "the first has to compile"
    assert said() == "False\n"
    file.write_text(file.read_text().replace("// 2", "// 1").replace("[2, 3]", "[4, 7]"))
    assert said() == "True\n", "what is changed is compiled anew"
