"""DCLM: the description of a tokenised dataset (`exp_data/datasets/tokenized/*.json`), tars of rows
of token ids."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import Node
from .account import Account, nothing
from .places import Names

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


def is_mine(tree: Node) -> bool:
    return (
        isinstance(tree.value, dict)
        and {"dataset_url", "manifest_url", "tokenized"} <= tree.value.keys()
    )


def convert(tree: Node, account: Account) -> MixtureFile:
    """One source of all its shards, each row once a pass: what it was made of was mixed before."""
    top = account.open(tree)
    top.pass_over(*_KNOWN, *_MADE)
    name, url = Names().of(top.text("name") or "data"), top.text("dataset_url")
    if not url or top.peek("tokenized") is False:
        top.report(
            "dataset_url",
            "these are pages, not rows of tokens: which files of them are read is said elsewhere",
        )
        raise nothing(Path(tree.file), "DCLM")
    paths = top.local("dataset_url", name, [f"{url.rstrip('/')}/*.tar"])
    top.note(
        "data_key",
        "rows hold token ids that were joined, cut and shuffled when they were written: no packing",
    )
    top.note(
        "sources", "they were mixed when the shards were written, and cannot be told apart here"
    )
    top.note("sampling_yaml", "its frequencies held when the shards were written")
    top.note("mirrors", "the same shards lie elsewhere too")
    return MixtureFile(
        (SourceEntry(name, paths, format="tar"),), temperature=1, stop="all_exhausted"
    )
