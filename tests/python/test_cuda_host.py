"""What the package does for CUDA on the host, where no GPU is needed."""

import importlib.machinery
import importlib.util
import logging

import pytest
import torch

from stepwell import _binding, _torch


def views():
    """(tensor, whether kernels that move 16 bytes at a time can read its rows)."""
    wide = torch.zeros(2, 6, 4, 24, dtype=torch.bfloat16)
    odd = torch.zeros(2, 6, 4, 20, dtype=torch.bfloat16)
    dense = torch.zeros(2, 6, 4, 16, dtype=torch.bfloat16)
    one_head = torch.zeros(2, 6, 20, dtype=torch.bfloat16)[:, :, None, :16]
    return [
        (dense, True),
        (dense.transpose(1, 2), True),
        (dense.transpose(2, 3), False),
        (dense[:, :, :1].expand(-1, -1, 4, -1), True),
        (dense[:1, :1, :1, :1].expand(2, 6, 4, 16), False),
        (wide[..., :16], True),
        (wide[..., 8:], True),
        (wide[..., 4:20], False),
        (odd[..., :16], False),
        (one_head, False),
        (one_head[:1, :1], True),  # strides of single elements do not matter
        (dense.as_strided((1, 6, 4, 16), (3, 64, 16, 1)), True),
    ]


def test_aligned_rows():
    for tensor, expected in views():
        assert tensor.data_ptr() % 2 == 0
        assert _torch._is_aligned(tensor) == expected, (tensor.shape, tensor.stride())


def test_copies_of_rows_that_cannot_be_read():
    def kernel(*args):
        return args

    for tensor, aligned in views():
        other = torch.zeros(3, 5)[:, 1:4]
        results = _torch._with_aligned_rows(kernel, (0, 2))(tensor, other, None, "word")
        assert results[1] is other
        assert results[2:] == (None, "word")
        assert (results[0] is tensor) == aligned
        assert torch.equal(results[0], tensor)
        # The gradient that the operator makes from the copy is as its fake says.
        assert torch.empty_like(results[0]).stride() == torch.empty_like(tensor).stride()


def test_operands_that_kernels_read_in_rows():
    """The indices are those of the operators' floating-point tensors, row values aside."""
    rows = {
        "diffusion_attention": ["q", "k", "v"],
        "sequence_attention": ["q", "k", "v"],
        "split_attention": ["q_noisy", "k_noisy", "v_noisy", "k_clean", "v_clean", "q_clean"],
    }
    outputs = ["dout", "out"]
    for name, inputs in rows.items():
        split = ["dout_clean", "out_clean"] if name.startswith("split") else []
        for suffix, expected in (("", inputs), ("_backward", [*outputs, *split, *inputs])):
            op = getattr(torch.ops.stepwell, name + suffix).default
            names = [argument.name for argument in op._schema.arguments]
            assert [names[i] for i in _torch.ALIGNED_ROWS[op._opname]] == expected


def test_library_folders_of_nvidias_wheels(tmp_path, monkeypatch):
    for folder in ("one/cu13/lib", "two/cuda_nvrtc/lib", "two/cublas/lib"):
        (tmp_path / folder).mkdir(parents=True)
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "two"), str(tmp_path / "one")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert _binding._nvidia_library_dirs() == [
        str(tmp_path / "one/cu13/lib"),
        str(tmp_path / "two/cuda_nvrtc/lib"),
    ]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _binding._nvidia_library_dirs() == []


def test_log_lines_reach_logging(caplog):
    with caplog.at_level(logging.INFO, logger="stepwell"):
        _binding._log(0, "compiled 100 % of it")
        _binding._log(1, "no cache")
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (logging.INFO, "compiled 100 % of it"),
        (logging.WARNING, "no cache"),
    ]


def test_environment_functions_check_their_arguments():
    with pytest.raises(TypeError, match="callback must be a function"):
        _binding._module.set_log_callback(3)
    with pytest.raises(TypeError, match="folders must be a string"):
        _binding._module.set_library_dirs(3)
    with pytest.raises(TypeError, match="folders is missing"):
        _binding._module.set_library_dirs()
