from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError
from penstock.sources.braces import expand_braces
from penstock.sources.paths import detect_format, find, require_one_format


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in (
        "b/2.jsonl",
        "a/1.jsonl",
        "a/10.jsonl",
        "a/README.md",
        "a/deep/3.jsonl",
        "c/x.parquet",
        "empty/no",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    return tmp_path


def names(folder: Path, *paths: str | Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix() for path in find([str(folder / path) for path in paths])
    ]


def test_a_file_a_glob_and_a_list_are_sorted(data: Path) -> None:
    assert names(data, "a/1.jsonl") == ["a/1.jsonl"]
    assert names(data, "a/*.jsonl") == ["a/1.jsonl", "a/10.jsonl"]
    assert names(data, "b/*", "a/*.jsonl") == ["a/1.jsonl", "a/10.jsonl", "b/2.jsonl"]
    assert names(data, "**/*.jsonl") == ["a/1.jsonl", "a/10.jsonl", "a/deep/3.jsonl", "b/2.jsonl"]
    assert find(data / "a" / "1.jsonl") == find(str(data / "a" / "1.jsonl"))


def test_a_folder_is_the_data_files_right_inside_it(data: Path) -> None:
    assert names(data, "a") == ["a/1.jsonl", "a/10.jsonl"]
    (data / "a" / ".1.jsonl.penstock-lines").write_text("not data")
    assert names(data, "a") == ["a/1.jsonl", "a/10.jsonl"]
    with pytest.raises(ConfigError, match=r"holds no data files \(no\).*\.vortex$"):
        find(data / "empty")


def test_braces_are_expanded_before_globs(data: Path) -> None:
    assert names(data, "{a,b}/*.jsonl") == ["a/1.jsonl", "a/10.jsonl", "b/2.jsonl"]
    assert names(data, "{b/{2..2},a/{1,10}}.jsonl") == [
        "a/1.jsonl",
        "a/10.jsonl",
        "b/2.jsonl",
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x", ["x"]),
        ("{000..002}", ["000", "001", "002"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("p{a,{0..1}}q", ["paq", "p0q", "p1q"]),
        ("{a,}", ["a", ""]),
        ("{one}", ["{one}"]),
        ("{one}{a,b}", ["{one}a", "{one}b"]),
        ("{open", ["{open"]),
        ("{a..c}", ["{a..c}"]),
    ],
)
def test_braces(pattern: str, expected: list[str]) -> None:
    assert list(expand_braces(pattern)) == expected


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 4))
def test_a_brace_range_has_all_its_numbers(first: int, last: int, width: int) -> None:
    found = list(expand_braces(f"x{{{first:0{width}d}..{last:0{width}d}}}"))
    low, high = sorted((first, last))
    assert sorted(int(name[1:]) for name in found) == list(range(low, high + 1))


def test_a_huge_brace_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 1,000,000 names"):
        list(expand_braces("{0..99999999999}"))


def test_the_missing_file_of_a_range_is_named(data: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"b/1\.jsonl' is missing from .*b/\{0\.\.2\}\.jsonl.*holds 0\.jsonl, 2\.jsonl",
    ):
        (data / "b" / "0.jsonl").touch()
        find(str(data / "b" / "{0..2}.jsonl"))


def test_a_pattern_that_matches_nothing_is_named(data: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"a/\*\.csv' matches no file: the folder .* holds 1\.jsonl, 10\.jsonl"
    ):
        find(str(data / "a" / "*.csv"))
    with pytest.raises(ConfigError, match=r"there is no folder '.*/zzz'"):
        find(str(data / "zzz" / "yyy" / "*.csv"))
    with pytest.raises(ConfigError, match="no paths"):
        find([])


def test_a_name_with_a_brace_or_a_star_means_itself(tmp_path: Path) -> None:
    for name in ("{a,b}.txt", "[1].txt", "x{y}.txt"):
        (tmp_path / name).write_text("x")
        assert names(tmp_path, name) == [name]


def test_duplicates_are_refused_by_name(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"1\.jsonl' is named twice"):
        find([str(data / "a" / "*.jsonl"), data / "a" / "1.jsonl"])
    with pytest.raises(ConfigError, match="named twice"):
        find([str(data / "a" / "1.jsonl"), str(data / "b" / ".." / "a" / "1.jsonl")])


def test_two_links_to_one_file_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "blobs" / "0f").write_text('{"a": 1}\n')
    links = [tmp_path / "data" / f"{number}.jsonl" for number in range(2)]
    for link in links:
        link.symlink_to("../blobs/0f")
    assert find(tmp_path / "data") == find(links) == links
    assert list(ps.read(tmp_path / "data")) == [{"a": 1}, {"a": 1}]
    with pytest.raises(ConfigError, match="named twice"):
        find([links[0], *links])
    for target in ("1.jsonl", "last.jsonl"):  # a link to what is a file of the set itself
        (tmp_path / "data" / ("last.jsonl" if target == "1.jsonl" else "more.jsonl")).symlink_to(
            target
        )
        with pytest.raises(ConfigError, match=r"(last|more)\.jsonl' is named twice"):
            find(tmp_path / "data")


@pytest.mark.parametrize("scheme", ["s3:", "gs:", "https:", "file:"])
def test_folders_that_are_named_like_a_scheme_are_folders(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is missing"):
        find(scheme)
    (tmp_path / scheme).mkdir()
    with pytest.raises(ConfigError, match="holds no data files"):
        find(scheme)
    (tmp_path / scheme / "x.jsonl").write_text('{"a": 1}\n')
    for path in (scheme, f"./{scheme}/x.jsonl", "*/*.jsonl", "**/*.jsonl"):
        assert list(ps.read(path)) == [{"a": 1}]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("x.parquet", "parquet"),
        ("x.pq", "parquet"),
        ("x.arrow", "arrow"),
        ("x.IPC", "arrow"),
        ("x.feather", "arrow"),
        ("x.jsonl", "jsonl"),
        ("x.ndjson.zst", "jsonl"),
        ("x.json", "jsonl"),
        ("x.jsonl.gz", "jsonl"),
        ("x.csv.gz", "csv"),
        ("x.txt.zst", "text"),
        ("x.parquet.gz", None),
        ("x.gz", None),
        ("x.md", None),
        ("x", None),
    ],
)
def test_format_of(name: str, format: str | None) -> None:
    assert detect_format(Path(name)) == format


def test_formats_must_agree_and_be_known() -> None:
    assert require_one_format([Path("a.json"), Path("b.jsonl.gz")], None) == "jsonl"
    assert require_one_format([Path("a.log"), Path("b.jsonl")], "text") == "text"
    with pytest.raises(ConfigError, match=r"mixed formats: a\.csv is csv, b\.jsonl is jsonl"):
        require_one_format([Path("a.csv"), Path("b.jsonl")], None)
    with pytest.raises(
        ConfigError, match=r"b\.xyz: the extension '\.xyz' names no format; known are \.parquet"
    ):
        require_one_format([Path("a.csv"), Path("b.xyz")], None)
    with pytest.raises(
        ConfigError, match="format='avro'.*choose .*'arrow', 'csv', .*'parquet', 'tar'"
    ):
        require_one_format([Path("a.csv")], "avro")
    with pytest.raises(ConfigError, match="parquet files cannot be read through .gz"):
        require_one_format([Path("a.parquet.gz")], "parquet")


def test_a_file_whose_name_begins_with_a_tilde_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "~nobody.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    assert find("~nobody.jsonl") == [Path("~nobody.jsonl")]
    with pytest.raises(ConfigError, match="~no-one.jsonl' is missing"):
        find("~no-one.jsonl")


def test_paths_may_come_from_an_iterator(tmp_path: Path) -> None:
    """It was looked at twice, and empty the second time."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"x": "{name}"}}\n')
    wanted = [{"x": "a"}, {"x": "b"}]
    assert list(ps.read(tmp_path.glob("*.jsonl"))) == wanted
    assert list(ps.read(str(tmp_path / f"{name}.jsonl") for name in "ba")) == wanted
    with pytest.raises(ConfigError, match="no paths were given"):
        ps.read(iter([]))


def test_a_link_to_itself_does_not_hide_that_another_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    with pytest.raises(ConfigError, match=r"'[^']*other.jsonl' is missing: .*loop.jsonl"):
        ps.read(tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="loop.jsonl' is a link to itself, no file: remove it"):
        ps.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.WAV", r"Lazy\(\{'file': 'audio'\}\)\), or make shards: penstock prepare"),
        ("a.mp4", r"Lazy\(\{'file': 'video'\}\)"),
        ("a.jpeg", r"Lazy\(\{'file': 'image'\}\)"),
        ("a.npz", r"dict\(numpy\.load\(path\)\)"),
    ],
)
def test_files_that_are_one_sample_each_are_refused_with_what_reads_them(
    tmp_path: Path, name: str, remedy: str
) -> None:
    (tmp_path / name).write_bytes(b"x")
    for pattern in (tmp_path, tmp_path / name, tmp_path / "*"):
        with pytest.raises(ConfigError, match=remedy):
            ps.read(pattern)
