"""DCLM: descriptions of tokenized datasets (`exp_data/datasets/tokenized/*.json`) in tars."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import Account, nothing
from .locations import Names

_KNOWN = (
    "uuid",
    "creation_date",
    "tokenizer",
    "num_tokens",
    "size",
    "note",
    "manifest_url",
    "tokenized",
)
_MADE = ("dcnlp_commit_hash", "dcnlp_diff")


def is_mine(tree: MixtureNode) -> bool:
    return (
        isinstance(tree.value, dict)
        and {"dataset_url", "manifest_url", "tokenized"} <= tree.value.keys()
    )


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert to one source of all shards, each row once per pass; they were mixed before."""
    top = account.open(tree)
    top.pass_over(*_KNOWN, *_MADE)
    name, url = Names().of(top.text("name") or "data"), top.text("dataset_url")
    if not url or top.peek("tokenized") is False:
        top.report(
            "dataset_url",
            "these are pages, not rows of tokens: another file names the files to read",
        )
        raise nothing(Path(tree.file), "DCLM")
    paths = top.local("dataset_url", name, [f"{url.rstrip('/')}/*.tar"])
    top.note(
        "data_key",
        "rows are token ids, already concatenated, split and shuffled: no packing",
    )
    top.note("sources", "they were mixed when the shards were written, and are no longer separate")
    top.note("sampling_yaml", "its frequencies were applied when the shards were written")
    top.note("mirrors", "they are copies of the same shards")
    return MixtureFile(
        (SourceEntry(name, paths, format="tar"),), temperature=1, stop="all_exhausted"
    )
