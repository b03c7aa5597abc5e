"""Settings from three places: which wins, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from maar.app.settings.layers import (
    Key,
    build,
    from_environment,
    from_file,
    from_flags,
    merge_layers,
    setting_types,
)
from maar.model.errors import InvalidInput


class Depth(msgspec.Struct, frozen=True):
    most_m: int = 74
    mean_m: int = 37


class Lake(msgspec.Struct, frozen=True, kw_only=True):
    area_m2: Annotated[int, msgspec.Meta(ge=1)] = 1000
    name: str = "Ulmen"
    frozen: bool = False
    kind: Literal["maar", "tarn"] = "maar"
    ages: tuple[int, ...] = (1, 2)
    secret_spot: str = ""
    depth: Depth = Depth()

    def __post_init__(self) -> None:
        if self.frozen and self.kind == "maar":
            raise ValueError("a maar does not freeze")


SECTIONS: dict[str, type[Any]] = {"lake": Lake}


def lake(*layers: dict[Key, Any]) -> Lake:
    built: Lake = build(SECTIONS, merge_layers(*layers))["lake"]
    return built


def environment(**pairs: str) -> dict[Key, Any]:
    return from_environment(pairs)


def file_of(tmp_path: Path, text: str) -> dict[Key, Any]:
    path = tmp_path / "maar.toml"
    path.write_text(text)
    return from_file(path)


def test_nothing_given_means_the_defaults() -> None:
    assert lake({}) == Lake()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, '[lake]\nname = "file"\narea_m2 = 1\nages = [5]\n')
    flags = from_flags({"--name": (Key("lake", "name"), "flag")})
    found = lake(file, environment(MAAR_LAKE__NAME="env", MAAR_LAKE__AREA_M2="2"), flags)
    assert found == Lake(name="flag", area_m2=2, ages=(5,))


def test_text_becomes_numbers_truth_and_lists() -> None:
    found = lake(
        environment(
            MAAR_LAKE__AREA_M2="12",
            MAAR_LAKE__FROZEN="true",
            MAAR_LAKE__KIND="tarn",
            MAAR_LAKE__AGES="7, 8,9",
        )
    )
    assert found == Lake(area_m2=12, frozen=True, kind="tarn", ages=(7, 8, 9))
    assert lake(environment(MAAR_LAKE__AGES="[3]")).ages == (3,)
    assert lake(environment(MAAR_LAKE__NAME="12")).name == "12"
    assert lake(environment(MAAR_LAKE__NAME="[x")).name == "[x"


def test_a_part_of_a_section_is_reached_by_a_dotted_name(tmp_path: Path) -> None:
    file = file_of(tmp_path, "[lake.depth]\nmost_m = 1\n")
    found = lake(file, environment(MAAR_LAKE__DEPTH__MEAN_M="2"))
    assert found.depth == Depth(most_m=1, mean_m=2)
    assert "depth.most_m" in setting_types(Lake)
    assert "depth" not in setting_types(Lake)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({"MAAR_LAKE__AREA_M2": "wide"}, ["lake.area_m2", "'wide'", "MAAR_LAKE__AREA_M2", "int"]),
        ({"MAAR_LAKE__AREA_M2": "0"}, ["lake.area_m2", ">= 1"]),
        ({"MAAR_LAKE__KIND": "pond"}, ["lake.kind", "pond"]),
        ({"MAAR_LAKE__AREA": "1"}, ["lake.area", "did you mean lake.area_m2"]),
        ({"MAAR_POND__AREA": "1"}, ["pond.area", "no section 'pond'", "lake"]),
        ({"MAAR_LAKE__FROZEN": "1"}, ["lake.frozen", "MAAR_LAKE__FROZEN", "does not freeze"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_remedy(
    pairs: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        lake(environment(**pairs))
    for word in words:
        assert word in str(caught.value)


def test_a_file_must_give_numbers_as_numbers(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"lake\.area_m2 = '5' \(file .*maar\.toml\)"):
        lake(file_of(tmp_path, '[lake]\narea_m2 = "5"\n'))


def test_unknown_and_malformed_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read the settings file"):
        from_file(tmp_path / "absent.toml")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        file_of(tmp_path, "[lake\n")
    with pytest.raises(InvalidInput, match="must be a table"):
        file_of(tmp_path, "lake = 5\n")
    with pytest.raises(InvalidInput, match=r"did you mean lake\.depth\.most_m"):
        lake(file_of(tmp_path, "[lake.depth]\nmost = 1\n"))


def test_a_wrong_secret_is_not_repeated() -> None:
    class Vault(msgspec.Struct):
        secret_number: int = 0

    with pytest.raises(InvalidInput) as caught:
        build({"vault": Vault}, from_environment({"MAAR_VAULT__SECRET_NUMBER": "hunter2"}))
    assert "hunter2" not in str(caught.value)


def test_other_variables_of_the_environment_are_none_of_our_business() -> None:
    pairs = {"MAAR_SERVER": "http://x", "MAAR_CONFIG": "x", "PATH": "/bin", "OTHER__NAME": "1"}
    assert from_environment(pairs) == {}
