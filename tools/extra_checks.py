"""Checks of single extras, run by a Python that has the core and one extra: `extra_checks.py zstd`.

Each function uses what its extra is for, as the page of the docs that its docstring names does.
`tools/clean_install.py extras` runs them, each in a new environment. Without the extra, an error
must name the command that installs it: `extra_checks.py --missing zstd`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

STORES = Path(__file__).resolve().parent.parent / "tests" / "sources" / "stores"
CORE = {"numpy", "penstock-data", "pyarrow"}
# Loaded by a .pth file of an installer, or as stubs.
INSTALLERS = {"setuptools", "pip", "distutils-precedence"}
# PyArrow by itself imports pandas, cloudpickle and dateutil, where they are installed.
PYARROW_ALONE = """
import sys, pyarrow as pa, pyarrow.parquet as pq, pyarrow.dataset
pq.write_table(pa.table({"x": [1]}), "alone.parquet")
pq.read_table("alone.parquet").to_pylist()
print(*{name.partition(".")[0] for name in sys.modules})
"""


def import_any(name: str) -> Any:
    """Return a module without its types: the checker need not have every extra."""
    return importlib.import_module(name)


def foreign_modules() -> set[str]:
    """Return the loaded modules that belong to other distributions than the core."""
    owners = packages_distributions()
    return {
        module
        for module in {name.partition(".")[0] for name in sys.modules}
        if module in owners and not set(owners[module]) & (CORE | INSTALLERS)
    }


def require_core_alone() -> None:
    """Raise `AssertionError` if the core, in use, imported a package of an extra."""
    Path("rows.jsonl").write_text("".join(f'{{"text": "{i}"}}\n' for i in range(20)), "utf-8")
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), "rows.parquet")
    inputs = {"a": ps.read("rows.jsonl").shuffle(), "b": ps.read("rows.parquet").shuffle()}
    with ps.Loader(ps.mix(inputs, {"a": 2, "b": 1}, seed=1).batch(4), workers=2) as loader:
        for step, _ in enumerate(loader, 1):
            if step == 5:
                ps.save("core", loader)
                break
    command = [sys.executable, "-c", PYARROW_ALONE]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    modules = foreign_modules() - set(alone)
    assert not modules, f"the core imports {sorted(modules)}"


def numbers(count: int = 20) -> ps.Dataset:
    """Return a dataset of numbers."""
    return ps.from_sequence(range(count), name="numbers").shuffle(seed=1)


def penstock(*arguments: str) -> str:
    """Run the command line and return what it prints."""
    command = [sys.executable, "-m", "penstock", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    if "pip install" in ended.stderr + ended.stdout and ended.returncode:
        raise ImportError(ended.stderr + ended.stdout)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout


def write_mixture() -> None:
    """Write a mixture file over a file of lines."""
    Path("a.jsonl").write_text("".join(f'{{"text": "{i}"}}\n' for i in range(50)), "utf-8")
    Path("mixture.yaml").write_text(
        "seed: 1\nhorizon: {steps: 20}\nglobal_batch_size: 4\n"
        "sources: {a: {path: a.jsonl, weight: 1}}\n"
    )


def check_cli() -> None:
    """Use the command line (docs/command-line.md)."""
    write_mixture()
    assert "20 steps" in penstock("plan", "mixture.yaml")


def check_demo() -> None:
    """Run the demo (README.md)."""
    assert "steps equal" in penstock("demo", "--steps", "40", "--out", "demo-out")


def check_zstd() -> None:
    """Read compressed lines (docs/files.md)."""
    with pa.CompressedOutputStream("rows.jsonl.zst", "zstd") as file:
        file.write(b'{"text": "a"}\n{"text": "b"}\n')
    assert ps.read("rows.jsonl.zst")[1] == {"text": "b"}


def check_torch() -> None:
    """Load tensors (docs/torch.md)."""
    with ps.Loader(numbers().batch(4), to="torch", device="cpu") as loader:
        assert next(iter(loader)).shape == (4,)
    import_any("penstock.integrations.torch.nodes")


def check_jax() -> None:
    """Load arrays of JAX, and save with Orbax (docs/jax.md)."""
    with ps.Loader(numbers().batch(4), to="jax") as loader:
        assert next(iter(loader)).shape == (4,)
    import_any("penstock.integrations.orbax")


def check_hf() -> None:
    """Render a chat template, and read a dataset in memory (docs/text.md, docs/files.md)."""
    from penstock.text import Chat, Tokenize

    if not importlib.util.find_spec("tokenizers"):
        Path("tokenizer.json").write_text("{}")
        _ = ps.from_sequence([{"text": "a"}]).map(Tokenize("tokenizer.json"))[0]
    tokenizers = import_any("tokenizers")
    letters = {letter: i for i, letter in enumerate("abcdefgh")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    encoded = ps.from_sequence(rows).map(Chat(tokenizer, template="chatml"))[0]
    assert encoded["loss_mask"].any()
    import_any("transformers")
    table = import_any("datasets").Dataset.from_list([{"text": "a"}, {"text": "b"}])
    assert ps.read(table)[1] == {"text": "b"}


def decode(kind: Any, path: str, body: bytes) -> Any:
    """Return a handle of a medium in a file."""
    from penstock.media import Lazy

    Path(path).write_bytes(body)
    return ps.from_sequence([{"field": path}]).map(Lazy({"field": kind}))[0]["field"]


def check_images() -> None:
    """Decode a picture (docs/media.md)."""
    # A PNG of one pixel.
    body = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
        "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    )
    assert decode("image", "red.png", body).decode("rgb8").shape == (1, 1, 3)


def check_audio() -> None:
    """Decode a part of a sound (docs/media.md)."""
    import wave

    with wave.open("sound.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.zeros(8000, np.int16).tobytes())
    sound = decode("audio", "copy.wav", Path("sound.wav").read_bytes())
    assert sound.samples(0.0, 0.5).shape == (1, 4000)


def check_video() -> None:
    """Decode a frame (docs/media.md)."""
    try:
        av = import_any("av")
    except ImportError:
        return decode("video", "clip.mp4", b"none").size
    with av.open("clip.avi", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for i in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 20 * i, np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    clip = decode("video", "copy.avi", Path("clip.avi").read_bytes())
    assert clip.numbered([3]).shape == (1, 32, 32, 3)


def check_pdf() -> None:
    """Render a page (docs/media.md)."""
    parts = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 72 72]>>",
    ]
    body, offsets = b"%PDF-1.4\n", list[int]()
    for number, part in enumerate(parts, 1):
        offsets.append(len(body))
        body += b"%d 0 obj%sendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    body += b"xref\n0 4\n0000000000 65535 f \n%strailer<</Size 4/Root 1 0 R>>\n" % table
    body += b"startxref\n%d\n%%%%EOF\n" % body.index(b"xref")
    assert decode("pdf", "page.pdf", body).page(0, dpi=72).shape == (72, 72, 3)


def check_array_record() -> None:
    """Read ArrayRecord (docs/files.md)."""
    try:
        module = import_any("array_record.python.array_record_module")
    except ImportError:
        Path("a.array_record").write_bytes(bytes(1 << 16))
    else:
        writer = module.ArrayRecordWriter("a.array_record", "group_size:1")
        writer.write(b"first")
        writer.close()
    assert ps.read("a.array_record")[0] == {"__record__": b"first"}


def check_hdf5() -> None:
    """Read HDF5 (docs/files.md)."""
    try:
        with import_any("h5py").File("a.h5", "w") as file:
            file["x"] = np.arange(5)
    except ImportError:
        Path("a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(500))
    assert ps.read("a.h5")[3] == {"x": 3}


def check_zarr() -> None:
    """Read Zarr (docs/files.md)."""
    try:
        group = import_any("zarr").open_group("a.zarr", mode="w")
        group.create_array("x", data=np.arange(5))
    except ImportError:
        Path("a.zarr").mkdir()
        metadata = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        Path("a.zarr/zarr.json").write_text(json.dumps(metadata))
    assert ps.read("a.zarr")[3] == {"x": 3}


def check_lance() -> None:
    """Read Lance (docs/files.md)."""
    try:
        import_any("lance").write_dataset(pa.table({"x": [1, 2, 3]}), "a.lance")
    except ImportError:
        Path("a.lance/_versions").mkdir(parents=True)
        Path("a.lance/_versions/1.manifest").write_bytes(b"none")
    assert ps.read("a.lance")[1] == {"x": 2}


def check_vortex() -> None:
    """Read Vortex (docs/files.md)."""
    try:
        vortex = import_any("vortex")
        vortex.io.write(vortex.Array.from_arrow(pa.table({"x": [1, 2, 3]})), "a.vortex")
    except ImportError:
        Path("a.vortex").write_bytes(b"VTXF" + bytes(500))
    assert ps.read("a.vortex")[1] == {"x": 2}


def check_yaml() -> None:
    """Load a mixture file (docs/mixture-files.md)."""
    write_mixture()
    assert len(ps.load("mixture.yaml")) == 20


def check_remote() -> None:
    """Read by fsspec (docs/stores.md)."""
    try:
        import_any("fsspec").filesystem("memory").pipe("/a.jsonl", b'{"x": 1}\n{"x": 2}\n')
    except ImportError:
        pass
    assert ps.read("memory://a.jsonl", cache="cache")[1] == {"x": 2}


def serve_range(listener: socket.socket, body: bytes, paths: list[str]) -> None:
    """Answer requests for one object as a store does: HEAD, and GET of a range."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(5)
            head = b""
            while b"\r\n\r\n" not in head and (more := connection.recv(65536)):
                head += more
            method, _, rest = head.decode("latin-1").partition(" ")
            headers = {
                key.lower(): value
                for key, _, value in (line.partition(": ") for line in rest.split("\r\n")[1:])
            }
            paths.append(f"{method} {rest.partition(' ')[0]}")
            start, stop, status = 0, len(body), "200 OK"
            extra = ""
            if (span := headers.get("range", "")).startswith("bytes="):
                first, _, last = span.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last or len(body)) + 1, len(body))
                status = "206 Partial Content"
                extra = f"Content-Range: bytes {start}-{stop - 1}/{len(body)}\r\n"
            answer = (
                f'HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\nETag: "1"\r\n{extra}'
                "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n"
                "x-goog-generation: 1\r\nx-ms-blob-type: BlockBlob\r\nConnection: close\r\n\r\n"
            )
            connection.sendall(answer.encode() + (b"" if method == "HEAD" else body[start:stop]))


def read_store(url: str, variables: Callable[[int], dict[str, str]]) -> None:
    """Read an object from a store that answers on this machine.

    Args:
        url: The address of the object.
        variables: The environment by the port of the store.
    """
    body, paths = b'{"x": 1}\n{"x": 2}\n', list[str]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_range, args=(listener, body, paths), daemon=True)
        thread.start()
        os.environ.update(variables(listener.getsockname()[1]), PENSTOCK_STORE_SECONDS="5")
        assert ps.read(url, cache="cache")[1] == {"x": 2}
    assert paths


def check_s3() -> None:
    """Read from S3 (docs/stores.md): an object, from a stand-in on this machine."""
    read_store(
        "s3://bucket/a.jsonl",
        lambda port: {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    )
    import_any("s3fs")


def check_gcs() -> None:
    """Import the packages for Google Cloud Storage (docs/stores.md); no store answers here."""
    if not importlib.util.find_spec("obstore"):
        _ = ps.read("gs://bucket/a.jsonl")
    import_any("obstore")
    import_any("gcsfs")


def check_azure() -> None:
    """Import the packages for Azure (docs/stores.md); no store answers here."""
    if not importlib.util.find_spec("obstore"):
        _ = ps.read("az://bucket/a.jsonl")
    import_any("obstore")
    import_any("adlfs")


def check_processes() -> None:
    """Run a lambda in worker processes (docs/loader.md)."""
    ds = numbers().map(lambda x: 2 * x)
    with ps.Loader(ds, executor="processes", workers=2) as loader:
        assert sorted(loader) == list(range(0, 40, 2))


def check_metrics() -> None:
    """Export metrics (docs/observe.md)."""
    from penstock.integrations.otel import observe
    from penstock.integrations.prometheus import LoaderCollector

    with ps.Loader(numbers().batch(4)) as loader:
        collector = LoaderCollector({"train": loader})
        registry = import_any("prometheus_client").CollectorRegistry()
        registry.register(collector)
        _ = list(loader)
        assert registry.get_sample_value("penstock_items_total", {"loader": "train"}) == 5
        observe({"train": loader})


def check_ray() -> None:
    """Run on Ray (docs/loader.md)."""
    os.environ.setdefault("RAY_ADDRESS", "local")
    with ps.Loader(numbers(), executor="ray", workers=1) as loader:
        assert sorted(loader) == list(range(20))
    import_any("ray").shutdown()


def check_trainers() -> None:
    """Import the integrations of trainers (docs/trainers.md)."""
    for name in ("lightning", "transformers", "trainers"):
        import_any(f"penstock.integrations.{name}")
    import_any("accelerate")


def check_torchtitan() -> None:
    """Import the integration of torchtitan (docs/trainers.md)."""
    import_any("torchtitan")
    import_any("penstock.integrations.torchtitan")


def check_olmo() -> None:
    """Import the integration of OLMo-core (docs/trainers.md)."""
    import_any("olmo_core")
    import_any("penstock.integrations.olmo")


def check_tensorflow() -> None:
    """Make a dataset of TensorFlow (docs/trainers.md)."""
    import_any("penstock.integrations.tensorflow")
    import_any("tensorflow")


def check_levanter() -> None:
    """Read a cache of Levanter (docs/token-stores.md)."""
    assert len(ps.read(STORES / "levanter")) > 1


def check_plot() -> None:
    """Draw a plan as PNG (docs/command-line.md); the command line is the extra `cli`."""
    write_mixture()
    penstock("plan", "mixture.yaml", "-o", "plan.png")
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")


def check_explore() -> None:
    """Open the page of a plan (docs/explore.md)."""
    write_mixture()
    command = [sys.executable, "-m", "penstock", "explore", "mixture.yaml", "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stderr is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), f"{url}{server.stderr.read()}"
        with urllib.request.urlopen(url, timeout=30) as page:
            assert page.status == 200
    finally:
        server.terminate()
        server.wait(30)


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_").replace("_", "-"): function
    for name, function in list(globals().items())
    if name.startswith("check_")
}


def main(arguments: list[str]) -> None:
    """Check one extra in an empty folder; with `--missing`, the error without it.

    Args:
        arguments: The command line: perhaps `--missing`, and the name of an extra.
    """
    is_missing, name = "--missing" in arguments, arguments[-1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        require_core_alone()
        if not is_missing:
            CHECKS[name]()
            print(f"{name}: works")
            return
        try:
            CHECKS[name]()
        except (ImportError, ps.PenstockError) as error:
            command = f"penstock-data[{name}]"
            assert command in str(error), f"the error does not name {command}: {error}"
            print(f"{name}: {str(error).splitlines()[0]}")
        else:
            raise AssertionError(f"{name}: works without its packages")


if __name__ == "__main__":
    main(sys.argv[1:])
