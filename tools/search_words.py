"""A hook of MkDocs for the search of the site: guides before the reference, and words for titles."""

from __future__ import annotations

from typing import Any

BOOSTS = {
    "resume.md": 2.0,
    "stores.md": 2.0,
    "architecture.md": 0.5,
    "position.md": 0.5,
    "promises.md": 0.5,
    "reference.md": 0.3,
}
# Words that readers type and that the title of the page has in another form.
WORDS = {
    "resume.md": ["resume", "restart", "checkpoint"],
    "errors.md": ["quarantine"],
    "tasks/sft.md": ["SFT", "fine-tune"],
    "tasks/dpo.md": ["DPO", "preference"],
    "tasks/rl.md": ["GRPO"],
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Set the boost and the tags that the search plugin of the theme reads from a page."""
    path = page.file.src_uri
    if path in BOOSTS:
        page.meta.setdefault("search", {})["boost"] = BOOSTS[path]
    if path in WORDS:
        page.meta["tags"] = WORDS[path]
