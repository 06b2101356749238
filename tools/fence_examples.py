"""For the reference page: the examples of a docstring become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

# An example begins with a prompt and goes on to the next empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class FenceExamples(griffe.Extension):
    """Fence what begins with `>>>`; Markdown would take it for a quotation."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for every object it has read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value
            )
