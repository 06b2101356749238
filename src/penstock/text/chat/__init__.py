"""Conversations to tokens and loss masks: `Chat`, and one file for each of its ideas.

- `conversation` has uniform messages, `formats` the table of forms of samples.
- `templates` renders messages in a sandbox; `families` are the built-in templates.
- `control_tokens` keeps control tokens in data from being tokens; `marks` are how renderings show
  where data and answers are.
- `loop_tracing` shows which message a template writes, and `spans` finds the characters of messages.
- `media` encodes images, audio and video in messages.
- `compiled` has a tokenizer and a template that fit, `rendering` makes one text of a conversation,
  and `encoded_row` the features of its tokens.
- `truncation` drops turns, `counts` counts what is dropped, and `chat` puts all together.
- `dropping` keeps positions where samples are dropped.
"""

from .chat import Chat, Untrained
from .counts import ChatStats
from .dropping import MarkDropped, can_drop, find_drop_reason, remove_dropped
from .formats import FIELD_NAMES, FORMAT_NAMES, FORMATS, ChatFormat, find_format
from .rendering import TrainOn
from .templates import FAMILIES, is_template_file
from .truncation import TRUNCATE, Truncate

__all__ = [
    "FAMILIES",
    "FIELD_NAMES",
    "FORMATS",
    "FORMAT_NAMES",
    "TRUNCATE",
    "Chat",
    "ChatFormat",
    "ChatStats",
    "MarkDropped",
    "TrainOn",
    "Truncate",
    "Untrained",
    "can_drop",
    "find_drop_reason",
    "find_format",
    "is_template_file",
    "remove_dropped",
]
