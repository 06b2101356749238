"""Values that are sent between processes come out equal."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engine.runtime.executors.serialization import deserialize, serialize_result


def test_tensors_come_out_as_they_were() -> None:
    torch: Any = pytest.importorskip("torch")
    matrix = torch.arange(6.0).reshape(2, 3)
    for tensor in (
        matrix.to(torch.float8_e4m3fn),
        matrix.to(torch.float8_e5m2).t(),
        torch.tensor(2.0).to(torch.float8_e4m3fn),
        matrix.to(torch.bfloat16),
        matrix.to(torch.complex64).mul(1j).conj(),
        matrix.clone().requires_grad_(),
        matrix.to_sparse(),
    ):
        made = serialize_result({"x": tensor})
        found = deserialize(made.pickled, made.buffers)["x"]
        assert (found.dtype, found.shape, found.requires_grad) == (
            tensor.dtype,
            tensor.shape,
            tensor.requires_grad,
        )
        one, other = (
            each.detach().to_dense().resolve_conj().to(torch.complex64) for each in (found, tensor)
        )
        assert one.tolist() == other.tolist()
