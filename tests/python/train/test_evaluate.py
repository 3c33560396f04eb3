import gzip
import math

import helpers
import pytest
import torch

from stepwell.train import evaluate
from stepwell.train.attention import make_attention


def text(data):
    return torch.tensor(list(data))


def test_unigram_is_the_cross_entropy_of_counts():
    train = text(b"aaab")
    expected = -(math.log2(4 / 260) + math.log2(2 / 260) + math.log2(1 / 260)) / 3
    assert evaluate.unigram_bits(train, text(b"abc")) == pytest.approx(expected)


def test_bigram_is_the_cross_entropy_of_smoothed_pairs():
    train = text(b"ababac")
    a, b, c = 4 / 262, 3 / 262, 2 / 262  # byte frequencies with their pseudo-counts
    expected = -(math.log2((2 + b) / 4) + math.log2((2 + a) / 3) + math.log2((1 + c) / 4)) / 3
    assert evaluate.bigram_bits(train, text(b"abac")) == pytest.approx(expected)


def test_bigram_probabilities_sum_to_one():
    train = helpers.random_tokens(1, 500)[0]
    after_a = [2 ** -evaluate.bigram_bits(train, torch.tensor([97, byte])) for byte in range(256)]
    assert sum(after_a) == pytest.approx(1)


def test_gzip_counts_compressed_bits():
    data = b"to be or not to be " * 40
    assert evaluate.gzip_bits(text(data)) == 8 * len(gzip.compress(data, 9)) / len(data)


def test_bound_is_fixed_and_its_error_is_of_windows():
    model, how = helpers.random_model(), make_attention("sdpa")
    windows = helpers.random_tokens(12, 32)
    first = evaluate.held_out_bound(model, windows, how, batch=5)
    again = evaluate.held_out_bound(model, windows, how, batch=5)
    assert first == again
    assert first.windows == 12
    assert 0 < first.standard_error < first.bits


def test_bound_matches_the_average_over_all_masks():
    """Averaged over many masks of the same text the estimate becomes the exact bound."""
    model, how = helpers.random_model(), make_attention("sdpa")
    tokens = helpers.random_tokens(1, 32)
    exact = 0.0
    for pattern in range(1, 16):
        bits = torch.tensor([pattern >> i & 1 for i in range(4)], dtype=torch.bool)
        masked = bits.repeat(1, 8)
        k = int(bits.sum())
        with torch.no_grad():
            noisy = tokens.masked_fill(masked, 256)
            logits = model.masked_logits(torch.cat((noisy, tokens), 1), masked, how)
        nll = torch.nn.functional.cross_entropy(logits, tokens[masked], reduction="sum")
        exact += nll.item() / (k * math.comb(4, k))
    exact /= 32 * math.log(2)
    found = evaluate.held_out_bound(model, tokens.expand(1500, 32), how, batch=1500)
    assert abs(found.bits - exact) < 4 * found.standard_error
    assert found.standard_error < 0.01 * exact
