"""A tokenizer and a template that fit together, built once in each process."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ...errors import ConfigError
from ..offset_tokenizers import make_offset_tokenizer, swap_slash
from .control_tokens import ControlTokens
from .media import MediaProcessor, is_processor
from .spans import MessageLocator
from .templates import ChatTemplate, Family, list_templates

_MARKUP = {
    f"<{slash}{name}>"
    for name in ("think", "thinking", "reasoning", "answer", "tool_call", "tool_response")
    for slash in ("", "/")
}
"""Pairs that models write in answers, even where a tokenizer has them as special tokens."""


class CompiledChat:
    """A tokenizer, a template, and the control tokens of both.

    Args:
        tokenizer: an object of a package, or a processor of transformers.
        source: the template, if there is one.
        tool_source: another one for conversations with tools.
        family: the family of a built-in template.
        variables: values for the template.
        date: the date for templates that ask for it.
        bos: the text of the token that begins a sample, if the user names it; "" for none.
        eos: the text of the token that ends a sample, if the user names it; "" for none.
        allowed: control tokens that are tokens in the data too, or "all".
        named: the tokens that a file beside the tokenizer names, such as `eos_token`.

    Attributes:
        named_tokens: texts of the special tokens that the tokenizer names, such as `eos_token`, and
            that samples depend on.

    Raises:
        ConfigError: if the tokenizer lacks tokens of the template.
    """

    def __init__(
        self,
        tokenizer: Any,
        source: str | None,
        tool_source: str | None,
        family: Family | None,
        variables: Mapping[str, Any],
        date: datetime.date | None,
        bos: str | None,
        eos: str | None,
        allowed: Sequence[str],
        named: Mapping[str, str],
    ) -> None:
        self.processor = MediaProcessor(tokenizer) if is_processor(tokenizer) else None
        if self.processor is not None:
            tokenizer = self.processor.tokenizer
        self.tokenizer = make_offset_tokenizer(tokenizer)
        known = {**self.tokenizer.added, **self.tokenizer.special}
        text = f"{source or ''}{tool_source or ''}"
        writes_bos, writes_eos = (
            name in text and name not in variables for name in ("bos_token", "eos_token")
        )
        self.bos, self.eos = (
            _name_token(tokenizer, name, named, default, known) if given is None else given
            for name, given, default in (
                ("bos", bos, (family and family.bos, writes_bos and self.tokenizer.bos)),
                ("eos", eos, (family and family.eos, self.tokenizer.eos)),
            )
        )
        self._leaves_out_eos = eos == ""
        for name, token in (("bos", bos), ("eos", eos)):
            if token and token not in known:
                raise ConfigError(
                    f"Chat({name}={token!r}): the tokenizer has no such control token; give one of "
                    f"{', '.join(sorted(known)[:8]) or 'none: add it to the tokenizer'}"
                )
        if family and (missing := [token for token in family.tokens if token not in known]):
            raise ConfigError(
                f"Chat(template={family.file!r}): the tokenizer lacks the tokens "
                f"{', '.join(missing)}: add them with tokenizer.add_special_tokens and resize the "
                "embeddings of the model, or choose the template that its model was trained with"
            )
        if allowed != "all" and (unknown := sorted({*allowed} - {*known})):
            raise ConfigError(
                f"Chat(allowed_special={tuple(allowed)}): the tokenizer has no control token "
                f"{unknown[0]!r}; it has {', '.join(sorted(known)[:8]) or 'none'}"
            )
        if allowed == "all":
            control, markup = set[str](), set[str]()
        else:
            added = {token for token in self.tokenizer.added if token.strip()}
            markup = {token for token in added if swap_slash(token) in added}
            markup |= {token for token in known if token in _MARKUP and swap_slash(token) in known}
            control = {token for token in added if token in text} | markup
            control |= {*self.tokenizer.special, *(family.tokens if family else ())}
            control = {*control, *filter(None, (self.bos, self.eos))} - {*allowed}
        self.control = ControlTokens(control, markup)
        self.tokenizer.protect(self.control.tokens)
        self.text_prefix = self.tokenizer.prefix if bos is None else bos
        special = _special_tokens(tokenizer)
        defaults = {
            "bos_token": bos or (family and family.bos),
            "eos_token": eos or (family and family.eos),
        }
        values = {**special, "bos_token": self.bos, "eos_token": self.eos}
        self.named_tokens = {
            name: token
            for name, token in values.items()
            if (name in defaults or name in text) and token not in ("", defaults.get(name))
        }
        self._templates = dict[bool, tuple[ChatTemplate, MessageLocator, ControlTokens]]()
        self._other_names = [] if source else [*list_templates(tokenizer)]
        if text:
            has_no_bos = hasattr(tokenizer, "bos_token") or "bos_token" in named or bos == ""
            if writes_bos and not self.bos and not has_no_bos:
                raise _make_unnamed_error("bos", "<s>", self.tokenizer.special)
            if writes_eos and not self.eos and not self._leaves_out_eos:
                raise _make_unnamed_error("eos", "</s>", self.tokenizer.special)
            takes_parts = self.processor is not None
            known_values = {**values, "text_prefix": self.text_prefix, **variables}
            for has_tools, written in ((False, source), (True, tool_source)):
                if written is not None:
                    template = ChatTemplate(written, known_values, date, takes_parts)
                    locator = MessageLocator(template, self.control, self.eos)
                    self._templates[has_tools] = template, locator, self.control

    def require_eos(self, is_text: bool = True) -> None:
        """Raise if nothing names the token that ends texts, and the user does not leave it out.

        Args:
            is_text: whether the samples are texts, not conversations.

        Raises:
            ConfigError: if there is none.
        """
        if self.eos or self._leaves_out_eos:
            return
        tokens = _list_tokens(self.tokenizer.special)
        if not self._templates and not is_text:
            raise ConfigError(
                "the tokenizer has no chat template, which conversations need, and names no eos token, "
                "with which texts end: name a template, such as Chat(tokenizer, template='chatml'), or "
                f"the token, such as eos='</s>', or eos='' to leave it out; {tokens}"
            )
        raise ConfigError(
            "texts and completions end with the eos token, which the tokenizer does not name: give its "
            f"text, such as Chat(..., eos='</s>'), or eos='' to leave it out; {tokens}"
        )

    def require_template(
        self, has_tools: bool = False
    ) -> tuple[ChatTemplate, MessageLocator, ControlTokens]:
        """Return the template, with the locator of messages and the control tokens.

        Args:
            has_tools: whether the conversation has schemas of tools.

        Raises:
            ConfigError: if there is none.
        """
        found = self._templates.get(has_tools) or self._templates.get(False)
        if found is None:
            if self._other_names:
                raise ConfigError(
                    f"the tokenizer has the chat templates {', '.join(self._other_names)}, and none "
                    "is the default one: choose one, such as "
                    f"Chat(..., template=tokenizer.chat_template[{self._other_names[0]!r}])"
                )
            raise ConfigError(
                "the tokenizer has no chat template, which conversations need: name the family of "
                "the model, such as Chat(tokenizer, template='chatml'), or the path of a template"
            )
        return found


def _name_token(
    tokenizer: Any,
    name: str,
    named: Mapping[str, str],
    defaults: Sequence[str | bool | None],
    known: Mapping[str, int],
) -> str:
    """Return the token that a tokenizer or the file beside it names, else a default, else ""."""
    key = f"{name}_token"
    candidates: tuple[Any, ...] = (getattr(tokenizer, key, None), named.get(key), *defaults)
    return next((token for token in candidates if isinstance(token, str) and token in known), "")


def _make_unnamed_error(name: str, example: str, special: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"the chat template writes {name}_token, and the tokenizer does not name its token: give its "
        f"text, such as Chat(..., {name}={example!r}), or {name}='' to leave it out; "
        f"{_list_tokens(special)}"
    )


def _list_tokens(special: Iterable[str]) -> str:
    return f"the tokenizer has {', '.join(sorted(special)[:8]) or 'no control tokens'}"


def _special_tokens(tokenizer: Any) -> dict[str, Any]:
    tokens = getattr(tokenizer, "special_tokens_map", None)
    if not isinstance(tokens, Mapping):
        return {}
    items = cast("Mapping[str, Any]", tokens).items()
    return {name: str(token) for name, token in items if not isinstance(token, list)}
