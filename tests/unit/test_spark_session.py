"""How Spark is configured, without starting it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from maar.model.errors import InvalidInput, Unavailable
from maar.runner import session
from maar.runner.java import check_java, java_version
from maar.runner.settings import SparkSettings


@pytest.mark.parametrize(
    ("settings", "master"),
    [
        (SparkSettings(), f"local[{len(os.sched_getaffinity(0))},1]"),
        (SparkSettings(slots=3), "local[3,1]"),
        (SparkSettings(master="local"), "local[1,1]"),
        (SparkSettings(master="local[4]"), "local[4,1]"),
        (SparkSettings(master="local[4,7]"), "local[4,1]"),
        (SparkSettings(master="spark://host:7077"), "spark://host:7077"),
    ],
)
def test_a_local_master_names_its_slots_and_allows_one_attempt(
    settings: SparkSettings, master: str
) -> None:
    assert session.configuration(settings, Path("/s"))["spark.master"] == master


def test_spark_is_configured_without_retries_and_speculation() -> None:
    session.check_no_retries(session.configuration(SparkSettings(), Path("/s")))


@pytest.mark.parametrize(
    "setting",
    [
        "spark.task.maxFailures=4",
        "spark.speculation=true",
        "spark.stage.maxConsecutiveAttempts=4",
    ],
)
def test_a_setting_that_brings_retries_back_is_refused(setting: str) -> None:
    conf = session.configuration(SparkSettings(conf=(setting,)), Path("/s"))
    with pytest.raises(InvalidInput, match="under the same lease"):
        session.check_no_retries(conf)


def test_a_malformed_extra_setting_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"spark\.name=value"):
        session.configuration(SparkSettings(conf=("driver.memory 2g",)), Path("/s"))


def test_extra_settings_win() -> None:
    conf = session.configuration(SparkSettings(conf=("spark.app.name=mine",)), Path("/s"))
    assert conf["spark.app.name"] == "mine"


def test_spark_stays_on_loopback_without_a_user_interface_and_spills_to_the_scratch() -> None:
    conf = session.configuration(SparkSettings(), Path("/s"))
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.local.dir"] == "/s/spark"


@pytest.mark.parametrize(
    ("settings", "daemon"),
    [
        (SparkSettings(), "maar.runner.daemon"),
        (SparkSettings(python="/opt/python3"), None),  # which may be without maar
        (SparkSettings(master="spark://h:7077"), None),
        (SparkSettings(conf=("spark.python.daemon.module=mine",)), "mine"),
    ],
)
def test_tasks_are_forks_of_one_process_that_has_loaded_maar_where_it_is_installed(
    settings: SparkSettings, daemon: str | None
) -> None:
    conf = session.configuration(settings, Path("/s"))
    assert conf.get("spark.python.daemon.module") == daemon


@pytest.mark.parametrize(
    ("settings", "said", "left"),
    [
        (SparkSettings(ui=True), "", "127.0.0.1"),
        (SparkSettings(ui=True), "10.1.2.3", "10.1.2.3"),  # whoever runs it has decided
        (SparkSettings(ui=False), "", ""),
        (SparkSettings(ui=True, master="spark://h:7077"), "", ""),  # its executors need the driver
    ],
)
def test_spark_shows_its_page_on_loopback_unless_it_is_told_otherwise(
    settings: SparkSettings, said: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", said)
    session.keep_pages_on_loopback(settings)
    assert os.environ["SPARK_LOCAL_IP"] == left


@pytest.mark.parametrize(
    ("shown", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", 0),
    ],
)
def test_the_version_of_java_is_read(shown: str, version: int) -> None:
    assert java_version(shown) == version


def test_missing_java_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"Spark needs Java 17 or newer.*install a JDK"):
        check_java()


def test_a_java_that_cannot_run_just_now_may_run_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/of/an/interpreter/that/is/not/there\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="does not run"):
        check_java()


def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="is version 11"):
        check_java()


def test_a_jvm_takes_its_classes_from_an_archive_where_somebody_wrote_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "with space"))

    def options() -> str:
        conf = session.configuration(SparkSettings(java_options="-Xss2m"), Path("/s"))
        return conf["spark.driver.extraJavaOptions"]

    assert "Archive" not in options()
    archive = tmp_path / "with space" / "share" / "maar" / "spark-classes.jsa"
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(options())
    assert options().endswith(" -Xss2m"), "what is set comes last, and wins"


def test_a_driver_loads_neither_numpy_nor_arrow_to_call_its_jvm() -> None:
    """PySpark asks such a list at every call whether an argument is an array."""
    asked = (
        "import sys; from maar.runner import session; from py4j import protocol; "
        "session.without_numpy(); "
        "[each.can_convert('text') for each in protocol.INPUT_CONVERTER]; "
        "print(len(protocol.INPUT_CONVERTER) > 0, *{'numpy', 'pyarrow'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout == "True\n"
