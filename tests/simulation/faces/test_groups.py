"""Groups out of a CSV or of folders, and what is refused in one sentence."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from mien.errors import ConfigError, EmptyFolderError, NotFoundError
from simulation.faces.groups import folders_of_groups, read_groups

PEOPLE = {
    "Ada": [Path("Ada/1.jpg"), Path("Ada/2.jpg")],
    "Bob": [Path("Bob/1.jpg")],
    "Zoë": [Path("Zoë/a b.jpg")],
    "محمد": [Path("محمد/1.jpg")],
}


def written(folder: Path, text: str | bytes) -> Path:
    """Return a CSV with that content."""
    file = folder / "groups.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def members(folder: Path, text: str | bytes) -> dict[str, dict[str, tuple[str, ...]]]:
    return {name: dict(groups) for name, groups in read_groups(written(folder, text), PEOPLE).members.items()}


def test_columns_are_attributes_and_empty_cells_are_not_stated(tmp_path: Path) -> None:
    groups = read_groups(written(tmp_path, "person,age,sex\nAda,34,f\nBob,,m\nZoë,7\n\n,,\n"), PEOPLE)
    assert groups.members == {
        "age": {"0-12": ("Zoë",), "20-39": ("Ada",)},
        "sex": {"f": ("Ada",), "m": ("Bob",)},
    }
    assert groups.not_stated(PEOPLE) == {"age": 2, "sex": 2}
    assert len(groups.sha256) == 64


@pytest.mark.parametrize(
    ("age", "band"),
    [("0", "0-12"), ("12", "0-12"), ("13", "13-19"), ("19", "13-19"), ("20", "20-39"), ("59", "40-59"), ("101", "60+")],
)
def test_ages_in_years_become_bands(tmp_path: Path, age: str, band: str) -> None:
    assert members(tmp_path, f"person,age\nAda,{age}\n") == {"age": {band: ("Ada",)}}


def test_numbers_of_other_columns_stay_as_they_are(tmp_path: Path) -> None:
    assert members(tmp_path, "person,fitzpatrick\nAda,5\nBob,1\n") == {"fitzpatrick": {"1": ("Bob",), "5": ("Ada",)}}


def test_a_picture_states_the_group_of_its_person(tmp_path: Path) -> None:
    text = "picture,age\nAda/1.jpg,30\nAda/2.jpg,31\nZoë\\a b.jpg,60\n"
    assert members(tmp_path, text) == {"age": {"20-39": ("Ada",), "60+": ("Zoë",)}}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_marks_line_ends_and_forms_of_letters_are_no_fault(tmp_path: Path, form: str, mark: bytes, end: str) -> None:
    lines = ["Person, sex", "Zoë , f", "محمد,m", '"Ada",f']
    text = unicodedata.normalize("NFC" if form == "NFC" else "NFD", end.join(lines))
    assert members(tmp_path, mark + text.encode()) == {"sex": {"f": ("Ada", "Zoë"), "m": ("محمد",)}}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ConfigError, "needs one column 'person' or 'picture', its columns are none"),
        ("name,age\nAda,3\n", ConfigError, "its columns are name, age$"),
        ("person;age\nAda;3\n", ConfigError, "separate columns by commas"),
        ("person,picture,age\n", ConfigError, "needs one column"),
        ("person\nAda\n", ConfigError, "no column besides 'person'"),
        ("person,age,age\n", ConfigError, "each named once"),
        ("person,age,\nAda,3,4\n", ConfigError, "each named once"),
        ("person,age\nAda,3,4\n", ConfigError, "line 2 has 3 cells for 2 columns"),
        ("person,age\nEve,3\n", NotFoundError, "line 2 names a person that is not there, 'Eve'"),
        ("picture,age\nAda/9.jpg,3\n", NotFoundError, "line 2 names a picture that is not there, 'Ada/9.jpg'"),
        ("picture,age\n1.jpg,3\n", NotFoundError, r"pictures are named person/picture\.jpg"),
        ("person,age\n,3\n", NotFoundError, "names a person that is not there, ''"),
        ("age,person\n3\n", NotFoundError, "line 2 names a person that is not there, ''"),
        ("person,age\nAda,3\nAda,30\n", ConfigError, "Ada is in two groups of age, 0-12 and 20-39"),
        ("person,age\nAda,\n", ConfigError, "states no group of anybody"),
        (b"person,age\nAda,\xff\n", ConfigError, "is not UTF-8"),
        ('person,age\n"Ada,3\n', ConfigError, "is no CSV"),
        ("person,about\nAda," + "x" * 61 + "\n", ConfigError, "too long or unprintable"),
        ("person,about\nAda,a\x1bb\n", ConfigError, "too long or unprintable"),
        ("person," + ",".join(f"a{n}" for n in range(9)) + "\n", ConfigError, "needs 1 to 8 attributes"),
    ],
    ids=lambda value: None if isinstance(value, type) else ascii(value)[:24],
)
def test_a_file_that_cannot_be_understood_is_refused_in_a_sentence(
    tmp_path: Path, text: str | bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_groups(written(tmp_path, text), PEOPLE)


def test_a_column_that_tells_everybody_apart_is_no_attribute(tmp_path: Path) -> None:
    people = {f"p{n}": [Path(f"p{n}/1.jpg")] for n in range(41)}
    rows = "".join(f"p{n},{n}x\n" for n in range(41))
    with pytest.raises(ConfigError, match="born has 41 groups; at most 40"):
        read_groups(written(tmp_path, f"person,born\n{rows}"), people)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="--groups takes a CSV"):
        read_groups(tmp_path / "none.csv", PEOPLE)


def laid_out(folder: Path, *pictures: str) -> Path:
    """Return a folder with empty files at these places."""
    for each in pictures:
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).touch()
    return folder


class TestFolders:
    def test_folders_of_folders_are_groups(self, tmp_path: Path) -> None:
        folder = laid_out(tmp_path, "0-12/Ada/1.jpg", "0-12/Ada/2.jpg", "20-39/Bob/1.jpg", ".cache/x/1.jpg")
        people, groups = folders_of_groups(folder)
        assert {name: len(files) for name, files in people.items()} == {"Ada": 2, "Bob": 1}
        assert groups.members == {"group": {"0-12": ("Ada",), "20-39": ("Bob",)}}
        assert groups.sha256 == ""

    def test_one_person_in_two_groups_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"001 is in two groups, a and b; .* or rename one of them"):
            folders_of_groups(laid_out(tmp_path, "a/001/1.jpg", "b/001/1.jpg"))

    def test_people_without_groups_are_told_apart_from_groups(self, tmp_path: Path) -> None:
        with pytest.raises(EmptyFolderError, match="groups are folders group/person/pictures"):
            folders_of_groups(laid_out(tmp_path, "Ada/1.jpg"))
        with pytest.raises(EmptyFolderError, match="holds no folder"):
            folders_of_groups(laid_out(tmp_path / "empty", "1.jpg"))
        with pytest.raises(NotFoundError, match="there is no folder"):
            folders_of_groups(tmp_path / "none")
