"""Images and sounds in chats, encoded by processors of transformers."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import penstock as ps
from penstock.errors import ConfigError, DataError, Skip
from penstock.media import Lazy
from penstock.testing import assert_resumes
from penstock.text import CausalLM, Chat, Padded

transformers: Any = pytest.importorskip("transformers")

HEADERS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
)
TAILS = "{% endfor %}<|im_end|>\n{% endfor %}"
TEXT = "{% if part.type == 'text' %}{{ part.text }}{% endif %}"


def template(kind: str, placeholder: str, text: str = TEXT) -> str:
    part = f"{{% if part.type == '{kind}' %}}{placeholder}{{% endif %}}"
    return HEADERS + part + text + TAILS


def make_tokenizer(*tokens: str) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE({letter: i for i, letter in enumerate(letters)}, [])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", *tokens])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")


def image_processor(name: str) -> Any:
    """Return the class that uses Pillow: since version 5 another needs torchvision."""
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def llava(text: str = TEXT) -> Any:
    return transformers.LlavaProcessor(
        image_processor("CLIPImageProcessor")(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        make_tokenizer("<image>"),
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=template("image", "<image>\n", text),
    )


def gemma() -> Any:
    tokens = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    tokenizer = make_tokenizer(*tokens.values())
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    return transformers.Gemma3Processor(
        image_processor("Gemma3ImageProcessor")(size={"height": 28, "width": 28}),
        tokenizer,
        chat_template=template("image", "<start_of_image>"),
        image_seq_length=5,
    )


def idefics() -> Any:
    tiles = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    others = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    return transformers.Idefics3Processor(
        image_processor("Idefics3ImageProcessor")(
            size={"longest_edge": 112}, max_image_size={"longest_edge": 56}
        ),
        make_tokenizer(*others, *tiles),
        image_seq_len=4,
        chat_template=template("image", "<image>"),
    )


def qwen_audio() -> Any:
    return transformers.Qwen2AudioProcessor(
        transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2),
        make_tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        chat_template=template("audio", "<|audio_bos|><|AUDIO|><|audio_eos|>\n"),
    )


IMAGE_PROCESSORS = {"llava": llava, "gemma": gemma, "idefics": idefics}
WHITE = Image.new("RGB", (56, 84), (255, 255, 255))
BLACK = Image.new("RGB", (30, 20))
SOUND = np.sin(np.arange(16000) / 20).astype(np.float32)


def chat(question: Any, answer: Any = "A cat.", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **fields}


def text_of(processor: Any, row: dict[str, Any]) -> tuple[str, str]:
    decode = processor.tokenizer.decode
    return decode(row["tokens"]), decode(row["tokens"][row["loss_mask"]])


def encode_by_processor(processor: Any, sample: dict[str, Any], **media: Any) -> dict[str, Any]:
    messages = [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in sample["messages"]
    ]
    text = processor.apply_chat_template(messages, tokenize=False)
    return dict(processor(text=[text], **media, add_special_tokens=False, return_tensors="np"))


def assert_same_as_processor(
    processor: Any, sample: dict[str, Any], learned: str, **media: Any
) -> None:
    row = Chat(processor)(sample)
    expected = encode_by_processor(processor, sample, **media)
    assert row["tokens"].tolist() == expected.pop("input_ids")[0].tolist()
    assert text_of(processor, row)[1] == learned
    expected.pop("attention_mask")
    assert row.keys() == {"tokens", "loss_mask", *expected}
    for name, value in expected.items():
        value = value[0] if np.shape(value) == (1, len(row["tokens"])) else value
        np.testing.assert_array_equal(row[name], value)


@pytest.mark.parametrize("name", IMAGE_PROCESSORS)
def test_images_become_the_tokens_and_features_of_the_processor(name: str) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "Which?"}, {"type": "image"}]
    sample = chat(parts, images=[WHITE, BLACK])
    sample["messages"] += chat([{"type": "text", "text": "Sure?"}], "Yes.")["messages"]
    learned = "A cat.<|im_end|>Yes.<|im_end|>"
    assert_same_as_processor(IMAGE_PROCESSORS[name](), sample, learned, images=[WHITE, BLACK])


def test_sounds_become_the_tokens_and_features_of_the_processor() -> None:
    sample = chat([{"type": "audio"}, {"type": "text", "text": "What?"}], audio=SOUND)
    assert_same_as_processor(
        qwen_audio(), sample, "A cat.<|im_end|>", audio=[SOUND], sampling_rate=16000
    )


def test_a_processor_of_qwen() -> None:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision: {error}")
    placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    tokens = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    processor = transformers.Qwen2VLProcessor(
        image_processor("Qwen2VLImageProcessor")(min_pixels=28 * 28, max_pixels=28 * 28 * 16),
        make_tokenizer(*tokens),
        transformers.Qwen2VLVideoProcessor(),
        chat_template=template("image", placeholder),
    )
    sample = chat([{"type": "image"}, {"type": "image"}], images=[WHITE, BLACK])
    assert_same_as_processor(processor, sample, "A cat.<|im_end|>", images=[WHITE, BLACK])


def encoded_file(image: Image.Image, path: Path) -> bytes:
    image.save(path)
    return path.read_bytes()


def test_all_forms_of_media_in_samples(tmp_path: Path) -> None:
    processor = llava()
    encode = Chat(processor)
    expected = encode(chat([{"type": "image", "image": WHITE}, {"type": "text", "text": "Which?"}]))
    data = encoded_file(WHITE, tmp_path / "white.png")
    handle = Lazy({"image": "image"})({"image": {"bytes": data, "path": None}})["image"]
    samples = [
        chat([{"type": "image"}, {"type": "text", "text": "Which?"}], images=[handle]),
        chat([{"type": "image", "text": None}, {"type": "text", "text": "Which?"}], image=WHITE),
        chat("<image>Which?", images=[WHITE]),
        chat("Which?", images=[WHITE]),
        chat("Which?", images=(WHITE,)),
        chat("Which?", image=np.asarray(WHITE)),
        {
            "conversations": [
                {"from": "human", "value": "<image>Which?"}, {"from": "gpt", "value": "A cat."}
            ],
            "image": WHITE,
        },
    ]  # fmt: skip
    for sample in samples:
        row = encode(sample)
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(row[name], value)
    text = "<|im_start|>user\n<image><image><image><image>\nWhich?<|im_end|>\n"
    answer = "<|im_start|>assistant\nA cat.<|im_end|>\n"
    assert text_of(processor, expected) == (text + answer, "A cat.<|im_end|>")


def test_two_media_without_a_place_stand_before_the_first_question_in_order() -> None:
    encode = Chat(llava())
    system = [{"role": "system", "content": "Be brief."}]
    bare = {"messages": system + chat("Which?")["messages"], "images": [WHITE, BLACK]}
    placed = {**bare, "messages": system + chat("<image><image>Which?")["messages"]}
    for name, value in encode(placed).items():
        np.testing.assert_array_equal(encode(bare)[name], value)


def test_a_sample_without_media_has_no_features_of_media() -> None:
    row = Chat(llava())(chat("Which <image>?"))
    assert row.keys() == {"tokens", "loss_mask"}
    texts = ["user", "Which <image>?", "assistant", "A cat."]
    assert len(row["tokens"]) == sum(map(len, texts)) + 2 * len(("<start>", "\n", "<end>", "\n"))


@pytest.mark.parametrize("form", ["messages", "parts", "prompt"])
def test_noncharacters_in_texts_take_no_media(form: str) -> None:
    text, clean = "\U0001fffeWhich\ufdd8?", "\ufffdWhich\ufffd?"
    question = {
        "messages": lambda text: chat(text),
        "parts": lambda text: chat([{"type": "text", "text": text}, {"type": "image"}]),
        "prompt": lambda text: {"prompt": text, "completion": chat("", "A cat.")["messages"][1:]},
    }[form]
    encode = Chat(llava())
    row, expected = (encode({**question(each), "image": WHITE}) for each in (text, clean))
    assert row["tokens"].tolist() == expected["tokens"].tolist()
    np.testing.assert_array_equal(row["pixel_values"], expected["pixel_values"])


def test_placeholders_in_texts_are_texts() -> None:
    processor = llava()
    encode = Chat(processor)
    row = encode(chat([{"type": "image"}, {"type": "text", "text": "<image>?"}], images=[WHITE]))
    image = processor.image_token_id
    assert (row["tokens"] == image).sum() == 4
    assert text_of(processor, row)[0].count("<image>") == 5
    assert encode.stats.control_tokens == 1
    with pytest.raises(DataError, match="'token_type_ids' has a value for each token"):
        Chat(gemma())(
            chat([{"type": "image"}, {"type": "text", "text": "<end_of_image>"}], image=WHITE)
        )


@pytest.mark.parametrize("generation", [False, True])
def test_tokens_of_media_are_never_learned(generation: bool) -> None:
    text = TEXT
    if generation:
        text = TEXT.replace("{{ part.text }}", "{% generation %}{{ part.text }}{% endgeneration %}")
    answer = [{"type": "text", "text": "See: "}, {"type": "image"}, {"type": "text", "text": "."}]
    processor = llava(text)
    row = Chat(processor, train_on="all")(chat("Draw.", answer, images=[WHITE]))
    everything, learned = text_of(processor, row)
    assert everything.count("<image>") == 4 and "<image>" not in learned
    assert learned.split() == everything.replace("<image>", "").split()
    if not generation:
        learned = text_of(processor, Chat(processor)(chat("Draw.", answer, images=[WHITE])))[1]
        assert learned == "See: \n.<|im_end|>"


def test_long_conversations_lose_turns_with_their_media_and_are_never_cut() -> None:
    processor = llava()
    first, second = chat("<image>Which?"), chat("<image>And this?", "A dog.")
    sample = {"messages": first["messages"] + second["messages"], "images": [WHITE, BLACK]}
    whole = len(Chat(processor)(sample)["tokens"])
    encode = Chat(processor, max_length=whole - 1)
    expected = Chat(processor)({**second, "images": [BLACK]})
    for name, value in encode(sample).items():
        np.testing.assert_array_equal(value, expected[name])
    with pytest.raises(Skip):
        Chat(processor, max_length=whole - 1, truncate="right")(sample)
    assert (
        Chat(processor, max_length=12, truncate="right", untrained="keep")(chat("Which?"))[
            "tokens"
        ].size
        == 12
    )


def test_both_sides_of_a_pair_have_the_media_of_the_prompt() -> None:
    user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]}
    sides = {
        name: [user, {"role": "assistant", "content": answer}]
        for name, answer in (("chosen", "A cat."), ("rejected", "A dog."))
    }
    processor = llava()
    row = Chat(processor)({**sides, "images": [WHITE]})
    for side, answer in (("chosen_", "A cat."), ("rejected_", "A dog.")):
        np.testing.assert_array_equal(
            row[side + "pixel_values"], Chat(processor)(chat("Which?", image=WHITE))["pixel_values"]
        )
        assert processor.tokenizer.decode(row[side + "tokens"][row[side + "loss_mask"]]).startswith(
            answer
        )


def test_processors_in_a_run(tmp_path: Path) -> None:
    data = encoded_file(WHITE, tmp_path / "white.png")
    rows = [
        {**chat("<image>Which?" if i % 3 else "Hi?", "A" * i), "images": [data] * (i % 3 > 0)}
        for i in range(12)
    ]
    collate = Padded(join=("pixel_values",))
    samples = (
        ps.from_sequence(rows)
        .shuffle()
        .map(Lazy({"images": "image"}))
        .map(Chat(llava()), may_skip=True)
    )
    batches = samples.batch(4, collate=collate).map(CausalLM())
    with ps.Loader(batches, workers=2) as loader:
        seen = list(loader)
    assert sum(len(batch["pixel_values"]) for batch in seen) == 8
    assert all((batch["labels"] >= 0).any(1).all() for batch in seen)
    assert_resumes(lambda: batches)
    encode = Chat(llava())
    again = pickle.loads(pickle.dumps(encode))
    sample = chat("Which?", image=BLACK)
    assert again(sample)["tokens"].tolist() == encode(sample)["tokens"].tolist()


def test_the_description_names_the_settings_of_the_processor() -> None:
    other = llava()
    other.image_processor.size = {"shortest_edge": 30}
    names = {Chat(processor).__qualname__ for processor in (llava(), llava(), gemma(), other)}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (chat("<image>Which?", images=[WHITE, BLACK]), "has 2 of 'image'.* places for 1: a place"),
        (chat("<image><image>hi", images=[WHITE]), "a message has <image>, and the sample has no more in images"),
        (chat("<image>hi", images=[None]), "a medium in images or image is null"),
        (chat([{"type": "image"}]), "part of type 'image' without content.*images or image"),
        (chat("Which?", images=[b"GIF89a"]), r"is a bytes: decode it before, .*Lazy\(\{'images': 'image'\}"),
        (chat([{"type": "image_url", "image_url": {"url": "x"}}]), "type 'image' is a dict: decode"),
        (chat([{"type": "audio", "audio": SOUND}]), "template leaves out media: it writes 0 placeholders for 1 media, of audio"),
        ({"text": "Hello.", "images": [WHITE]}, "the sample has media, and texts"),
        (chat([{"type": "file", "file": "x"}]), "a part of type 'file': Chat encodes text"),
    ],
)  # fmt: skip
def test_bad_media(sample: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Chat(llava())(sample)


def test_sounds_of_another_rate_are_an_error() -> None:
    sound = {"type": "audio", "audio": {"array": SOUND, "sampling_rate": 8000}}
    with pytest.raises(DataError, match="8000 samples a second, and the processor takes 16000"):
        Chat(qwen_audio())(chat([sound]))


def test_media_without_a_processor_and_a_processor_without_placeholders() -> None:
    with pytest.raises(DataError, match="part of type 'image'.*or give Chat the processor"):
        Chat(make_tokenizer(), template="chatml")(chat([{"type": "image"}]))
    for media in ({"images": [b"x"]}, {"audio": SOUND}, {"image": {"bytes": b"x", "path": None}}):
        with pytest.raises(
            DataError, match="has media in .* which a tokenizer cannot encode: give"
        ):
            Chat(make_tokenizer(), template="chatml")(chat("Which?", **media))
    for empty in ({"images": []}, {"image": None}):
        assert Chat(make_tokenizer(), template="chatml")(chat("Which?", **empty))["loss_mask"].any()
    processor = llava()
    processor.image_token = None
    with pytest.raises(ConfigError, match="names no placeholder, such as image_token"):
        Chat(processor)


def test_padded_joins_features() -> None:
    documents: list[dict[str, Any]] = [
        {"tokens": [1, 2], "pixels": np.zeros((2, 3))}, {"tokens": [3]}, {"tokens": [4], "pixels": np.ones((1, 3))}
    ]  # fmt: skip
    batch = Padded(join=("pixels", "grids"))(documents)
    assert batch["pixels"].sum(1).tolist() == [0, 0, 3] and "grids" not in batch
    assert batch["tokens"].shape == (3, 2)
    documents[2]["pixels"] = np.ones((1, 4))
    with pytest.raises(DataError, match="join='pixels'"):
        Padded(join=("pixels",))(documents)
    with pytest.raises(ConfigError, match=r"give a tuple of names, such as \('pixels',\)"):
        Padded(join="pixels")
