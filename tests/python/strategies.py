"""Random cases of every layout, for hypothesis."""

from cases import Case
from hypothesis import strategies as st

from stepwell import masks

diffusion = st.builds(
    masks.Diffusion,
    block_size=st.integers(1, 26),
    order=st.sampled_from(["noisy_clean", "clean_noisy"]),
    clean=st.sampled_from(["block", "causal"]),
    noisy=st.sampled_from(["bidirectional", "causal"]),
    clean_window=st.none() | st.integers(1, 30),
    num_views=st.integers(1, 3),
)


@st.composite
def joint_cases(draw, longest=24):
    layout = draw(st.sampled_from(["batched", "interleaved", "halves"]))
    batch = draw(st.integers(1, 3))
    if layout == "batched":
        lengths = [draw(st.integers(0, longest))] * batch
    else:
        lengths = draw(st.lists(st.integers(0, longest), min_size=batch, max_size=batch))
    per_sample = st.lists(st.integers(0, 30), min_size=batch, max_size=batch)
    used = [draw(st.integers(0, n)) for n in lengths]
    return Case(
        "fuzz",
        layout,
        lengths,
        draw(diffusion),
        tail=draw(st.integers(0, 3)) if layout != "batched" else 0,
        prefix_lens=draw(st.none() | per_sample),
        seqused=draw(st.sampled_from([None, used])),
    )


@st.composite
def split_cases(draw, longest=16):
    packed = draw(st.booleans())
    batch = draw(st.integers(1, 3))
    mask = draw(diffusion)
    table = draw(st.booleans())
    if table:
        mask = masks.Diffusion(mask.block_size, clean=mask.clean, noisy=mask.noisy)
    else:
        mask = masks.Diffusion(
            mask.block_size,
            clean=mask.clean,
            noisy=mask.noisy,
            clean_window=mask.clean_window,
            num_views=mask.num_views,
        )
    length = st.integers(0, longest)
    lengths = [(draw(length), draw(length)) for _ in range(batch)]
    if not packed:
        lengths = [lengths[0]] * batch
    queries = draw(st.booleans())
    lengths = [(noisy, clean, clean if queries else 0) for noisy, clean in lengths]
    has_queries = any(clean for _, _, clean in lengths)
    ranges = None
    if table:
        most = max(-(-noisy // mask.block_size) for noisy, _, _ in lengths)
        ranges = [
            [
                sorted((draw(st.integers(0, clean)), draw(st.integers(0, clean))))
                for _ in range(most)
            ]
            for _, clean, _ in lengths
        ]
        if not most:
            ranges = None
    per_sample = st.lists(st.integers(0, 20), min_size=batch, max_size=batch)
    origins = draw(st.none() | per_sample)
    if ranges is not None and not (has_queries and mask.clean == "block"):
        origins = None
    return Case(
        "fuzz",
        "split_packed" if packed else "split",
        lengths,
        mask,
        tail=draw(st.integers(0, 2)) if packed else 0,
        prefix_lens=origins,
        noisy_offset=draw(st.integers(0, 20) | per_sample),
        clean_q_offset=draw(st.integers(0, 9) | per_sample) if has_queries else 0,
        seqused=draw(st.sampled_from([None, [draw(st.integers(0, n)) for n, _, _ in lengths]])),
        seqused_clean=draw(
            st.sampled_from([None, [draw(st.integers(0, n)) for _, n, _ in lengths]])
        ),
        block_ranges=ranges,
    )


@st.composite
def sequence_cases(draw, longest=20):
    packed = draw(st.booleans())
    batch = draw(st.integers(1, 3))
    length = st.integers(0, longest)
    lengths = [(draw(length), draw(length)) for _ in range(batch)]
    if not packed:
        lengths = [lengths[0]] * batch
    bound = st.none() | st.integers(0, 9)
    mask = draw(
        st.just(masks.Full())
        | st.just(masks.Causal())
        | st.builds(masks.Window, bound, bound)
        | st.builds(masks.BlockCausal, st.integers(1, 9))
    )
    per_sample = st.lists(st.integers(0, 20), min_size=batch, max_size=batch)
    return Case(
        "fuzz",
        "sequence_packed" if packed else "sequence",
        lengths,
        mask,
        prefix_lens=draw(st.none() | per_sample) if isinstance(mask, masks.BlockCausal) else None,
        q_offset=draw(st.integers(0, 20) | per_sample),
        seqused=draw(st.sampled_from([None, [draw(st.integers(0, n)) for n, _ in lengths]])),
        seqused_kv=draw(st.sampled_from([None, [draw(st.integers(0, n)) for _, n in lengths]])),
    )
