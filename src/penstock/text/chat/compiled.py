"""A tokenizer and a template that fit together, built once in each process."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...errors import ConfigError
from ..offset_tokenizers import make_offset_tokenizer, swap_slash
from .control_tokens import ControlTokens
from .media import MediaProcessor, is_processor
from .spans import MessageLocator
from .templates import ChatTemplate, Family


class CompiledChat:
    """A tokenizer, a template, and the control tokens of both.

    Args:
        tokenizer: an object of a package, or a processor of transformers.
        source: the template, if there is one.
        family: the family of a built-in template.
        variables: values for the template.
        date: the date for templates that ask for it.
        bos: the text of the token that begins a sample, if the user names it.
        eos: the text of the token that ends a sample, if the user names it.
        allowed: control tokens that are tokens in the data too, or "all".

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
        family: Family | None,
        variables: Mapping[str, Any],
        date: datetime.date | None,
        bos: str | None,
        eos: str | None,
        allowed: Sequence[str],
    ) -> None:
        self.processor = MediaProcessor(tokenizer) if is_processor(tokenizer) else None
        if self.processor is not None:
            tokenizer = self.processor.tokenizer
        self.tokenizer = make_offset_tokenizer(tokenizer)
        known = {**self.tokenizer.added, **self.tokenizer.special}
        self.bos = bos or _name_token(tokenizer, "bos", family and family.bos, known)
        self.eos = eos or _name_token(tokenizer, "eos", family and family.eos, known)
        for name, token in (("bos", bos), ("eos", eos)):
            if token is not None and token not in known:
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
        if allowed == "all":
            control, markup = set[str](), set[str]()
        else:
            added = {token for token in self.tokenizer.added if token.strip()}
            markup = {token for token in added if swap_slash(token) in added}
            control = {token for token in added if token in (source or "")} | markup
            control |= {*self.tokenizer.special, *(family.tokens if family else ())}
            control = {*control, *filter(None, (self.bos, self.eos))} - {*allowed}
        self.control = ControlTokens(control, markup)
        self.tokenizer.protect(self.control.tokens)
        self.text_prefix = bos or self.tokenizer.prefix
        special = _special_tokens(tokenizer)
        defaults = {
            "bos_token": bos or (family and family.bos),
            "eos_token": eos or (family and family.eos),
        }
        named = {**special, "bos_token": self.bos, "eos_token": self.eos}
        self.named_tokens = {
            name: token
            for name, token in named.items()
            if (name in defaults or name in (source or ""))
            and token not in ("", defaults.get(name))
        }
        self._template: tuple[ChatTemplate, MessageLocator, ControlTokens] | None = None
        if source is not None:
            if "eos_token" in source and not self.eos:
                raise ConfigError(
                    "the chat template writes eos_token, and the tokenizer does not name its token: "
                    "give its text, such as Chat(..., eos='</s>')"
                )
            takes_parts = self.processor is not None
            template = ChatTemplate(source, {**named, **variables}, date, takes_parts)
            self._template = (
                template, MessageLocator(template, self.control, self.eos), self.control
            )  # fmt: skip

    def require_template(self) -> tuple[ChatTemplate, MessageLocator, ControlTokens]:
        """Return the template, with the locator of messages and the control tokens.

        Raises:
            ConfigError: if there is none.
        """
        if self._template is None:
            raise ConfigError(
                "the tokenizer has no chat template, which conversations need: name the family of "
                "the model, such as Chat(tokenizer, template='chatml'), or the path of a template"
            )
        return self._template


def _name_token(tokenizer: Any, name: str, default: str | None, known: Mapping[str, int]) -> str:
    """Return the text of a tokenizer's token, else the default of the family, else ""."""
    token = getattr(tokenizer, f"{name}_token", None)
    if isinstance(token, str) and token in known:
        return token
    return default if default is not None and default in known else ""


def _special_tokens(tokenizer: Any) -> dict[str, Any]:
    tokens = getattr(tokenizer, "special_tokens_map", None)
    if not isinstance(tokens, Mapping):
        return {}
    items = cast("Mapping[str, Any]", tokens).items()
    return {name: str(token) for name, token in items if not isinstance(token, list)}
