"""Names of files that other tools leave beside data.

Such files are descriptions, indexes, markers and partial files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

_LOGGER = logging.getLogger("penstock")
_LOGGED_MESSAGES = set[str]()
_NAMED_AT_MOST = 40
_MAX_PARTS = 1 << 17  # largest number of files that a name such as `-00000-of-00010` may state

_METADATA_NAMES = (
    r"dataset_infos?\.json|dataset_dict\.json|state\.json|indices\.arrow",  # datasets
    r"cache-[0-9a-f]{8,}(_\d+_of_\d+)?\.arrow",
    # Hadoop, Spark, Dask, Databricks
    r"_success|_common_metadata|_metadata|_(started|committed)_\d+",
    r"index\.json|shard_ledger\.json|\d+_stats\.json",  # MDS, LitData, Levanter, img2dataset
    r"features\.json|(.*[-_])?labels?\.labels\.txt",  # TFDS
    # transformers
    r"(generation_|preprocessor_|processor_)?config\.json|tokenizer(_config)?\.json",
    r"chat_template\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt",
    r"trainer_state\.json|(all|train|eval|test|predict)_results\.json|.*\.(bin|safetensors)\.index\.json",
    r"(pytorch_model|adapter_model|training_args|optimizer|scheduler)([-_]\d+.*)?\.bin",
    r"(v\d+|\d{5}-[0-9a-f-]{36})(\.gz)?\.metadata\.json",  # Iceberg
    r"croissant\.json|\.gitattributes|\.gitignore",  # the hub
    # Kaggle, npm, pip
    r"datapackage\.json|dataset-metadata\.json|package(-lock)?\.json|requirements\.txt",
    r"(readme|licen[cs]e|notice|changelog|contributing|citation)(\.(md|txt|rst|cff|bib))?",
    r"(md5|sha\d+)sums(\.txt)?|.*\.(crc|md5|sha1|sha256|sha512)",
    r".*\.(tmp|temp|incomplete|partial|lock|crdownload|aria2|swp)",
    r".*\.(idx|ds\.index|ds\.metadata|dvc)",  # Megatron, Energon, datatrove
    r"\.ds_store|\._.*|thumbs\.db|desktop\.ini",
)
_METADATA_FOLDERS = (
    r"_temporary.*|_tmp\..*|_delta_log|_change_data|"
    r"_spark_metadata|_logs|_symlink_format_manifest|__macosx|__pycache__|beam-temp-.*|"
    r"@eadir|lost\+found|\$recycle\.bin|system volume information"
)
_match_metadata_name = re.compile("|".join(_METADATA_NAMES), re.IGNORECASE).fullmatch
_match_numbered_name = re.compile(r"(.*?)-(\d{5,6})-of-(\d{5,6})(\D*)").fullmatch
_match_metadata_folder = re.compile(_METADATA_FOLDERS, re.IGNORECASE).fullmatch


def is_metadata(path: PurePath, named: str = "") -> bool:
    """Return whether a file or one of its folders is named like metadata of a known tool.

    A file named `named` counts as data.

    >>> is_metadata(PurePath("dataset_info.json")), is_metadata(PurePath("_temporary/0/a.parquet"))
    (True, True)
    >>> is_metadata(PurePath("part-00000.parquet"))
    False
    """
    return (bool(_match_metadata_name(path.name)) and path.name != named) or any(
        _match_metadata_folder(piece) for piece in path.parts[:-1]
    )


def log_left_out(given: str, names: Iterable[str]) -> None:
    """Log once which files are skipped."""
    if skipped := sorted(names):
        _log_once(
            f"{given}: left out {_join_names(skipped)}, which other tools keep beside data; name such a "
            "file to read it"
        )


def log_unread_folders(given: str, names: Sequence[str], extension: str) -> None:
    """Log once which folders within a folder have data that is not read."""
    if names:
        _log_once(
            f"{given}: the files of its folders ({_join_names(sorted(names))}) are not read; for all "
            f"files write {given}/**/*{extension}"
        )


def log_missing(given: str, paths: Iterable[PurePath]) -> None:
    """Log once which files are missing, if names state their number (`-00000-of-00010`).

    Log too if names state several numbers: files of an earlier export may be left in a folder.
    """
    totals = dict[tuple[str, str], set[str]]()
    numbers = dict[tuple[str, str, str], set[int]]()
    for path in paths:
        if match := _match_numbered_name(str(path)):
            numbers.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
            totals.setdefault((match[1], match[4]), set()).add(match[3])
    for (prefix, suffix), several in sorted(totals.items()):
        if len(several) > 1:
            names = [f"{prefix}-*-of-{total}{suffix}" for total in sorted(several)]
            _log_once(
                f"{given}: reads {_join_names(names)}; if one of them is an older export of the same "
                "rows, delete its files"
            )
    for (prefix, total, suffix), present in sorted(numbers.items()):
        if missing := sorted(set(range(min(int(total), _MAX_PARTS))) - present):
            names = [f"{prefix}-{number:0{len(total)}d}-of-{total}{suffix}" for number in missing]
            _log_once(
                f"{given}: {len(names)} of {int(total)} files are missing: {_join_names(names)}"
            )


def log_unchecked(given: str, table: str, kind: str) -> None:
    """Log once that the current files of a table are unknown."""
    _log_once(
        f"{given}: {table} is {kind}; Penstock also reads files that are no longer part of it: "
        "name the files of the version to read"
    )


def _log_once(message: str) -> None:
    if message not in _LOGGED_MESSAGES:
        _LOGGED_MESSAGES.add(message)
        _LOGGER.warning("%s", message)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST]) + (
        f" and {more} more" if (more := len(names) - _NAMED_AT_MOST) > 0 else ""
    )
