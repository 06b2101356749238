"""A function that raises StopIteration fails as others do: it ends nobody's iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

BAD = 50
ROWS = [["user", "assistant"] if row != BAD else ["user"] for row in range(100)]


def answer(roles: Sequence[str]) -> str:
    """As people write it, who have never seen a chat without an answer."""
    return next(role for role in roles if role == "assistant")


def answers(many: Sequence[Sequence[str]]) -> list[str]:
    return [answer(roles) for roles in many]


class Raising:
    """A sequence one of whose rows raises, read one by one."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> str:
        return answer(ROWS[index])


class AtOnce(Raising):
    """A sequence of `Raising` that reads many samples at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        return [self[index] for index in indices]


def chats() -> ps.Dataset:
    return ps.from_sequence(ROWS, name="chat")


def size(roles: Sequence[str]) -> int:
    return len(answer(roles))


NAMED: dict[str, Callable[[], ps.Dataset]] = {
    "map": lambda: chats().map(answer),
    "may_skip": lambda: chats().map(answer, may_skip=True),
    "batched": lambda: chats().map(answers, batched=8),
    "filter": lambda: chats().filter(answer),
    "flat_map": lambda: chats().flat_map(lambda roles: [answer(roles)]),
    "map_with_index": lambda: chats().map_with_index(lambda _, roles: answer(roles)),
    "random_map": lambda: chats().random_map(lambda roles, _: answer(roles)),
    "with_source": lambda: chats().with_source(lambda roles, *_: answer(roles)),
    "collate": lambda: chats().batch(10, collate=answers),
    "batch": lambda: chats().map(answer).batch(10),
    "pack": lambda: chats().map(lambda roles: [len(answer(roles))]).pack(8),
    "mix": lambda: ps.mix({"a": chats().map(answer), "b": chats()}, stop="first_exhausted"),
    "source": lambda: ps.from_sequence(Raising(), name="chat"),
    "source, at once": lambda: ps.from_sequence(AtOnce(), name="chat"),
}
UNNAMED: dict[str, Callable[[], ps.Dataset]] = {
    "bucket_by_length": lambda: chats().bucket_by_length((4, 16), 4, size=size),
    "batch_by_tokens": lambda: chats().batch_by_tokens(32, size=size),
    "from_iterable": lambda: ps.from_iterable(lambda: next(iter([]))),
}
SAID = "it raised StopIteration, as next\\(\\) does at the end: give next\\(\\) a default"


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"profile": True}], ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_it_is_an_error_that_names_its_sample(name: str, options: dict[str, Any]) -> None:
    """A regression test: the rest of a chunk was lost silently, and chunks depend on workers."""
    with (
        ps.Loader(NAMED[name](), **options) as loader,
        pytest.raises(RuntimeError, match=SAID) as caught,
    ):
        list(loader)
    first = f"chat[{BAD - BAD % 10 if name == 'collate' else BAD}]"
    assert first.replace("chat", "a" if name == "mix" else "chat") in caught.value.__notes__[-1]
    assert caught.traceback[-1].name in ("answer", "<genexpr>")  # where it was raised


@pytest.mark.parametrize("name", UNNAMED)
def test_it_is_an_error_where_no_sample_is_known(name: str) -> None:
    with ps.Loader(UNNAMED[name]()) as loader, pytest.raises(RuntimeError, match=SAID):
        list(loader)


def test_processes_say_it_too() -> None:
    with ps.Loader(chats().map(answer), workers=2, executor="processes") as loader:
        with pytest.raises(RuntimeError, match=SAID) as caught:
            list(loader)
        assert (
            f"chat[{BAD}]" in caught.value.__notes__[-1]
            and "in answer" in caught.value.__notes__[0]
        )


def test_another_takes_its_place_where_that_is_asked_for() -> None:
    with ps.Loader(chats().map(answer), on_error="quarantine") as loader:
        assert len(list(loader)) == 100 and [entry["index"] for entry in loader.journal] == [BAD]


def test_at_random_and_in_files_too(tmp_path: Path) -> None:
    ds = chats().map(answer)
    for ask in (
        lambda: ds[BAD],
        lambda: ds[[BAD - 1, BAD, BAD + 1]],
        lambda: ps.write(ds, tmp_path / "out", "jsonl"),
    ):
        with pytest.raises(RuntimeError, match=SAID) as caught:
            ask()
        assert f"index {BAD} of source chat" in str(caught.value.__notes__)
