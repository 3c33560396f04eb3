import helpers
import pytest
import torch

from stepwell.train.attention import make_attention
from stepwell.train.data import seeded
from stepwell.train.objective import draw_noise, noisy_clean
from stepwell.train.sample import Cache, block_features, commit, draw, generate

ATTENTIONS = pytest.mark.parametrize("name", ["stepwell", "sdpa"])


@ATTENTIONS
@pytest.mark.parametrize("first_commit", [4, 12])
def test_cached_logits_equal_those_of_the_training_pass(name, first_commit):
    """Noisy block j with the clean blocks before it in the cache, for every j."""
    model, how = helpers.random_model(), make_attention(name)
    tokens = helpers.random_tokens(2, 32)
    masked = draw_noise(2, 32, 4, seeded(1)).masked
    noisy = noisy_clean(tokens, masked)[:, :32]
    everywhere = torch.ones_like(masked)
    with torch.no_grad():
        expected = model.masked_logits(
            torch.cat((noisy, tokens), 1), everywhere, make_attention("sdpa")
        )
        expected = expected.view(2, 32, -1)
        cache = Cache(model, batch=2)
        for start in range(0, 32, 4):
            if start == 0 or start >= first_commit:
                features = block_features(model, cache, noisy[:, start : start + 4], how)
                found = model.logits(features)
                torch.testing.assert_close(
                    found, expected[:, start : start + 4], rtol=1e-4, atol=1e-4
                )
            if start + 4 >= first_commit:  # the blocks before it in one pass or one by one
                commit(model, cache, tokens[:, cache.length : start + 4], how)


@ATTENTIONS
def test_generation_with_a_cache_equals_generation_without(name):
    """Greedy: recomputing all of the text for every block gives the same bytes."""
    model, how = helpers.random_model(), make_attention(name)
    text = list(generate(model, b"", 32, how, temperature=0))
    for start in range(0, 32, 4):
        known = torch.tensor([text[:start] + [0] * (32 - start)])
        block = torch.full((4,), 256)
        places = set()
        with torch.no_grad():
            for _ in range(4):
                noisy = known.clone()
                noisy[0, start : start + 4] = block
                window = torch.ones(1, 32, dtype=torch.bool)
                logits = model.masked_logits(torch.cat((noisy, known), 1), window, how)
                best = logits[start : start + 4].argmax(-1)
                # Any order of the places is allowed; take those that the cached run agrees with.
                agreeing = [i for i in range(4) if i not in places and best[i] == text[start + i]]
                assert agreeing
                place = _place_of_cached_run(model, how, text, start, places, agreeing)
                places.add(place)
                block[place] = text[start + place]
        assert block.tolist() == text[start : start + 4]


def _place_of_cached_run(model, how, text, start, places, agreeing):
    """The next place of the cached run, replayed from its generator."""
    generator = seeded(0, 3)
    for _ in range(start // 4 + 1):
        order = torch.randperm(4, generator=generator)
    place = int(order[len(places)])
    assert place in agreeing
    return place


def test_prompt_may_end_inside_a_block():
    model, how = helpers.random_model(), make_attention("sdpa")
    for length in range(10):
        prompt = bytes(range(65, 65 + length))
        assert len(generate(model, prompt, 13, how)) == 13
    # Rest of the block and blocks after it see the prompt.
    first = generate(model, b"abcde", 20, how, temperature=0)
    second = generate(model, b"abcdz", 20, how, temperature=0)
    assert first != second


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_any_number_of_steps_fills_the_blocks(steps):
    model, how = helpers.random_model(), make_attention("sdpa")
    calls = []
    forward = model.forward
    model.forward = lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs)
    assert len(generate(model, b"", 32, how, steps=steps)) == 32
    assert len(calls) == 8 * (steps + 1)  # and one pass that fills the cache


def test_same_seed_same_text():
    model, how = helpers.random_model(), make_attention("sdpa")
    texts = [generate(model, b"", 32, how, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_arguments_are_checked():
    model, how = helpers.random_model(), make_attention("sdpa")
    with pytest.raises(ValueError, match="steps is 5; accepted: 1 to block_size, 4"):
        generate(model, b"", 4, how, steps=5)
    with pytest.raises(ValueError, match="prompt of 3 bytes and count 30; accepted: together"):
        generate(model, b"abc", 30, how)


def test_nucleus_keeps_the_most_probable():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(4000, 4)
    generator = torch.Generator().manual_seed(0)
    counts = torch.bincount(draw(logits, 1.0, 0.7, generator), minlength=4) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.625, 0.375, 0.0, 0.0]), rtol=0, atol=0.03)
    counts = torch.bincount(draw(logits, 1.0, 1.0, generator), minlength=4) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.3, 0.15, 0.05]), rtol=0, atol=0.03)
    assert (draw(logits, 0, 0.7, generator) == 0).all()
