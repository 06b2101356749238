"""A hook of MkDocs: `llms.txt`, and beside every page its text as Markdown, for readers without HTML.

`llms.txt` lists the pages in the order of the navigation, each with its first sentence.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

SENTENCE = re.compile(r".+?(?:[.:](?= )|$)")
NO_TEXT = ("#", "!", "|", ">", "- ", "* ", "<", ":::", "1. ")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
PAGES: dict[str, str] = {}
"""The Markdown of the pages of this build, by path."""


class MarkdownWriter(HTMLParser):
    """Convert the HTML of the reference, which is made from docstrings, to Markdown.

    >>> writer = MarkdownWriter()
    >>> writer.feed("<h2>Mix<a class='headerlink'>#</a></h2><p>Mix <code>a</code>.</p><pre>x = 1</pre>")
    >>> writer.text()
    '## Mix\\n\\nMix `a`.\\n\\n```python\\nx = 1\\n```\\n'
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts, self._in_block, self._hidden = list[str](), False, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Write what begins a heading, a list item, code or a paragraph."""
        if self._hidden or (tag == "a" and "headerlink" in (dict(attrs).get("class") or "")):
            self._hidden += tag == "a"
        elif re.fullmatch("h[1-6]", tag):
            self._parts.append(f"\n\n{'#' * int(tag[1])} ")
        elif tag == "pre":
            self._in_block = True
            self._parts.append("\n\n```python\n")
        elif tag == "code" and not self._in_block:
            self._parts.append("`")
        elif tag == "li":
            self._parts.append("\n- ")
        elif tag in ("p", "table", "tr", "dt"):
            self._parts.append("\n\n" if tag != "tr" else "\n")

    def handle_endtag(self, tag: str) -> None:
        """Write what ends code or a cell of a table."""
        if self._hidden:
            self._hidden -= tag == "a"
        elif tag == "pre":
            self._in_block = False
            self._parts.append("\n```\n")
        elif tag == "code" and not self._in_block:
            self._parts.append("`")
        elif tag in ("td", "th"):
            self._parts.append(" | ")

    def handle_data(self, data: str) -> None:
        """Write text; outside of code, spaces are one."""
        if not self._hidden:
            self._parts.append(data if self._in_block else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        """Return the Markdown."""
        text = re.sub(r"[ \t]+\n", "\n", "".join(self._parts))
        return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def summarize(markdown: str) -> str:
    """Return the first sentence of a page as plain text.

    >>> summarize("# Mixing\\n\\n![a](b.svg)\\n\\nMix [sources](a.md) by\\nweight. More.")
    'Mix sources by weight.'
    """
    body = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    paragraphs = (" ".join(part.split()) for part in body.split("\n\n"))
    text = next((part for part in paragraphs if part and not part.startswith(NO_TEXT)), "")
    match = SENTENCE.match(LINK.sub(r"\1", text).replace("**", ""))
    return match[0].rstrip(":") if match else ""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Note the text of a page, before links become HTML."""
    PAGES[page.file.src_uri] = markdown


def on_page_content(html: str, page: Any, **_: Any) -> None:
    """Note the text of the reference, which has only directives before it is rendered."""
    if re.search(r"^::: ", PAGES[page.file.src_uri], re.MULTILINE):
        writer = MarkdownWriter()
        writer.feed(html)
        PAGES[page.file.src_uri] = writer.text()


def list_pages(items: Any, title: str = "") -> list[tuple[str, Any]]:
    """Return the pages of a navigation, each with the title of its section."""
    pages = list[tuple[str, Any]]()
    for item in items:
        if item.is_section:
            pages += list_pages(item.children, item.title)
        elif item.is_page:
            pages.append((title, item))
    return pages


def on_nav(nav: Any, config: Any, **_: Any) -> None:
    """Keep the navigation for `llms.txt`."""
    config["extra"]["text_pages"] = list_pages(nav.items)


def on_post_build(config: Any, **_: Any) -> None:
    """Write `llms.txt` and the texts into the site."""
    site = Path(config["site_dir"])
    lines, section = [f"# {config['site_name']}", "", f"> {config['site_description']}"], None
    for title, page in config["extra"]["text_pages"]:
        path, text = page.file.src_uri, PAGES[page.file.src_uri]
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
        if title != section:
            lines += ["", f"## {title or 'More'}", ""]
            section = title
        summary = summarize(text)
        lines.append(f"- [{page.title}]({path}){f': {summary}' if summary else ''}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
