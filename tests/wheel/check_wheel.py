"""What an installed wheel must do by itself, with no torch, Highway or fmt beside it."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np

import stepwell


def dense_attention(q, k, v, mask):
    """Softmax attention of one head in float64; mask (rows_q, rows_kv)."""
    scores = q.astype(np.float64) @ k.T / np.sqrt(q.shape[-1])
    weights = np.where(mask, np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    return weights @ v / weights.sum(-1, keepdims=True)


def main():
    assert importlib.util.find_spec("torch") is None, "torch is installed: nothing is shown"

    rng = np.random.default_rng(0)
    n, block_size, heads, dim = 24, 4, 2, 16
    q, k, v = (rng.standard_normal((1, 2 * n, heads, dim), dtype=np.float32) for _ in range(3))
    out, lse = stepwell.diffusion_attn_func(q, k, v, block_size, return_lse=True)
    mask = stepwell.diffusion_mask(2 * n, block_size)[0]
    for head in range(heads):
        expected = dense_attention(q[0, :, head], k[0, :, head], v[0, :, head], mask)
        assert np.abs(out[0, :, head] - expected).max() < 1e-5
    dq, dk, dv = stepwell.diffusion_attn_backward(np.ones_like(out), q, k, v, out, lse, block_size)
    # A uniform gradient of out reaches every value with the total weight of its column.
    assert np.isclose(dv.sum(), out.size, rtol=1e-4)
    assert dq.shape == q.shape
    assert dk.shape == k.shape

    folder = pathlib.Path(stepwell.__file__).parent
    libraries = sorted(folder.rglob("*.so*"))
    assert libraries, f"no library in {folder}"
    program = pathlib.Path(sys.executable).parent / "stepwell"
    for binary in [*libraries, program]:
        needed = subprocess.run(
            ["ldd", str(binary)], capture_output=True, text=True, check=True
        ).stdout
        for name in ("hwy", "libfmt", "torch", "cudart"):
            assert name not in needed, f"{binary} needs {name}:\n{needed}"

    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"stepwell {stepwell.__version__}\n"
    bench = subprocess.run(
        [program, "bench", "--list"], capture_output=True, text=True, check=False
    )
    assert bench.returncode == 1
    assert f"needs torch 2.11 or later, which {sys.executable} does not have" in bench.stderr
    print(f"stepwell {stepwell.__version__}: imports and computes without torch")


if __name__ == "__main__":
    main()
