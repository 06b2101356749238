"""Conversations to tokens and loss masks: `Chat`, and one file for each of its ideas.

- `conversation` has uniform messages, `formats` the table of forms of samples.
- `templates` renders messages in a sandbox; `families` are the built-in templates.
- `control_tokens` keeps control tokens in data from being tokens; `marks` are how renderings show
  where data and answers are.
- `spans` finds the characters of messages, `encoding` the characters of tokens.
- `compiled` has a tokenizer and a template that fit, `rendering` makes one text of a conversation,
  and `encoded_row` the features of its tokens.
- `truncation` drops turns, `counts` counts what is dropped, and `chat` puts all together.
"""

from .chat import Chat
from .counts import ChatStats
from .formats import FORMATS, ChatFormat
from .templates import FAMILIES

__all__ = ["FAMILIES", "FORMATS", "Chat", "ChatFormat", "ChatStats"]
