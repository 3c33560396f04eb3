"""`stepwell mask` against the element rule: its counts, its tiles and its pictures."""

import json
import os
import re
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from drawn_masks import Rule, Token, segment, tiles_of
from PIL import Image

COLORS = {
    "own": (0xE6, 0x9F, 0x00),
    "noisy_clean": (0x56, 0xB4, 0xE9),
    "clean": (0x00, 0x72, 0xB2),
}
HIDDEN = {(0xF3, 0xF4, 0xF6), (0xB4, 0xBB, 0xC5)}  # background and hatching
PIECES = {"own": "own_block", "noisy_clean": "noisy_clean", "clean": "clean"}


@dataclass(frozen=True)
class Case:
    name: str
    args: str
    rule: Rule
    queries: list[Token]
    pairs: int | None = None  # visible, where known from elsewhere
    keys: list[Token] | None = None  # the same as the queries

    @property
    def key_rows(self):
        return self.queries if self.keys is None else self.keys


def halves(n, sample=0, views=1, used=None, order="noisy_clean"):
    """[noisy views | clean] of one sample."""
    noisy = [t for view in range(views) for t in segment(sample, "noisy", n, used, view)]
    clean = segment(sample, "clean", n, used)
    return noisy + clean if order == "noisy_clean" else clean + noisy


def packed(lengths, views=1):
    return [t for i, n in enumerate(lengths) for t in halves(n, i, views)]


def all_halves(lengths, used=None, tail=0):
    used = used or lengths
    padding = [Token(None)] * tail
    noisy = [t for i, n in enumerate(lengths) for t in segment(i, "noisy", n, used[i])]
    clean = [t for i, n in enumerate(lengths) for t in segment(i, "clean", n, used[i])]
    return noisy + padding + clean + padding


def sequence(args, rule, pairs, queries, keys, offset=0):
    return Case(
        args.replace("--", "").replace(" ", "-"),
        args,
        rule,
        segment(0, "clean", queries, position=offset),
        pairs,
        segment(0, "clean", keys),
    )


B4 = Rule(block_size=4)
CASES = [
    Case("plain", "-n 16 -b 4", B4, halves(16), 320),
    Case("clean-causal", "-n 16 -b 4 --clean causal", Rule(4, clean="causal"), halves(16), 296),
    Case(
        "both-causal",
        "-n 16 -b 4 --clean causal --noisy causal",
        Rule(4, clean="causal", noisy="causal"),
        halves(16),
        272,
    ),
    Case("ragged-15", "-n 15 -b 4", B4, halves(15), 282),
    Case("ragged-7", "-n 7 -b 4", B4, halves(7), 74),
    Case("b3", "-n 10 -b 3", Rule(3), halves(10), 128),
    Case(
        "b3-both-causal",
        "-n 10 -b 3 --clean causal --noisy causal",
        Rule(3, clean="causal", noisy="causal"),
        halves(10),
        110,
    ),
    Case("one-block", "-n 8 -b 16", Rule(16), halves(8), 128),
    Case("one-block-split-by-origin", "-n 8 -b 16 --prefix-lens 3", Rule(16, (3,)), halves(8), 98),
    Case("one-block-30", "-n 30 -b 32", Rule(32), halves(30), 1800),
    Case("origin", "-n 16 -b 4 --prefix-lens 6", Rule(4, (6,)), halves(16), 312),
    Case(
        "clean-first",
        "-n 16 -b 4 --order clean-noisy",
        B4,
        halves(16, order="clean_noisy"),
        320,
    ),
    Case("window", "-n 16 -b 4 --clean-window 6", Rule(4, clean_window=6), halves(16), 280),
    Case("two-views", "-n 16 -b 4 --num-views 2", B4, halves(16, views=2), 480),
    Case("seqused", "-n 16 -b 4 --seqused 7", B4, halves(16, used=7), 74),
    Case("interleaved", "-n 7,5,6 -b 4", B4, packed((7, 5, 6)), 172),
    Case(
        "interleaved-origins",
        "-n 7,5,6 -b 4 --prefix-lens 1,0,3",
        Rule(4, (1, 0, 3)),
        packed((7, 5, 6)),
    ),
    Case("halves", "-n 7,5,6 -b 4 --layout halves", B4, all_halves((7, 5, 6)), 172),
    Case(
        "halves-with-tail-and-padding",
        "-n 7,5,6 -b 4 --layout halves --total 42 --seqused 7,5,0",
        B4,
        all_halves((7, 5, 6), (7, 5, 0), 3),
    ),
    Case(
        "empty-sample",
        "-n 7,0,6 -b 4 --num-views 2",
        B4,
        packed((7, 0, 6), views=2),
    ),
    Case(
        "prompt-clean-noisy",
        "--layout split -n 9 --clean-length 15 --noisy-offset 6 --prefix-lens 6 -b 4",
        Rule(4, (6,)),
        segment(0, "noisy", 9, position=6) + segment(0, "clean", 15),
        250,
    ),
    Case(
        "noisy-10-clean-16",
        "--layout split -n 10 --clean-length 16 --noisy-offset 6 --prefix-lens 6 -b 4 "
        "--clean causal",
        Rule(4, (6,), clean="causal"),
        segment(0, "noisy", 10, position=6) + segment(0, "clean", 16),
        264,
    ),
    Case(
        "table",
        "--layout split -n 8 --clean-length 12 --clean-queries 0 -b 4 --block-ranges 0:3,0:7",
        Rule(4, table=((0, 3), (0, 7))),
        segment(0, "noisy", 8),
        72,
        keys=segment(0, "noisy", 8) + segment(0, "clean", 12),
    ),
    Case(
        "table-unsorted-with-holes",
        "--layout split -n 11 --clean-length 12 --clean-q-offset 8 --clean-queries 4 -b 4 "
        "--block-ranges 5:12,3:3,2:4",
        Rule(4, table=((5, 12), (3, 3), (2, 4))),
        segment(0, "noisy", 11) + segment(0, "clean", 4, position=8),
        keys=segment(0, "noisy", 11) + segment(0, "clean", 12),
    ),
    Case(
        "split-packed-unequal",
        "--layout split -n 4,6 --clean-length 8,3 --noisy-offset 4,0 --seqused-clean 7,3 -b 3",
        Rule(3),
        segment(0, "noisy", 4, position=4)
        + segment(1, "noisy", 6)
        + segment(0, "clean", 8, 7)
        + segment(1, "clean", 3),
    ),
    sequence("full --length 6 --length-kv 9", Rule(clean="full"), 54, 6, 9),
    sequence("causal --length 9", Rule(clean="causal"), 45, 9, 9),
    sequence("causal --length 5 --q-offset 4", Rule(clean="causal"), 35, 5, 9, 4),
    sequence(
        "window --length 20 --window-left 4 --window-right 2",
        Rule(clean="window", window=(4, 2)),
        127,
        20,
        20,
    ),
    sequence(
        "window --length 20 --window-left 4", Rule(clean="window", window=(4, 99)), 280, 20, 20
    ),
    sequence("block_causal --length 8 --q-offset 8 --block-size 4", B4, 112, 8, 16, 8),
]


def counts_of(case: Case, tile_q: int, tile_kv: int):
    """Pair and tile counts, pair by pair."""
    pieces = {"own": 0, "noisy_clean": 0, "clean": 0}
    for q in case.queries:
        for k in case.key_rows:
            piece = case.rule.piece(q, k)
            if piece is not None:
                pieces[piece] += 1
    full = partial = computed = 0
    rows, columns = tiles_of(case.queries, tile_q), tiles_of(case.key_rows, tile_kv)
    for tile_rows in rows:
        for tile_keys in columns:
            seen = [
                case.rule.piece(case.queries[i], case.key_rows[j]) is not None
                for i in tile_rows
                for j in tile_keys
            ]
            if any(seen):
                computed += len(seen)
                full += all(seen)
                partial += not all(seen)
    return pieces, full, partial, computed, len(rows) * len(columns)


@pytest.mark.parametrize("tile", [(4, 4), (3, 5), (8, 2), (64, 64)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_counts_are_those_of_the_element_rule(stepwell, case, tile):
    counts = json.loads(
        stepwell(f"mask {case.args} --json --tile-q {tile[0]} --tile-kv {tile[1]}").stdout
    )
    pieces, full, partial, computed, tiles = counts_of(case, *tile)
    assert counts["rows_q"] == len(case.queries)
    assert counts["rows_kv"] == len(case.key_rows)
    assert counts["pairs"]["visible"] == sum(pieces.values())
    if case.pairs is not None:
        assert counts["pairs"]["visible"] == case.pairs
    for piece, count in pieces.items():
        assert counts["pairs"][PIECES[piece]] == count
    assert counts["pairs"]["computed"] == computed
    assert counts["pairs"]["dense"] == len(case.queries) * len(case.key_rows)
    assert counts["tiles"]["full"] == full
    assert counts["tiles"]["partial"] == partial
    assert counts["tiles"]["visited"] == full + partial
    assert counts["tiles"]["skipped"] == tiles - full - partial


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_png_shows_every_pair(stepwell, tmp_path, case):
    path = tmp_path / "mask.png"
    result = stepwell(f"mask {case.args} --json --cell 10 --tile-q 4 --tile-kv 4 -o {path}")
    place = json.loads(result.stdout)["picture"]
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    image = Image.open(path).convert("RGB")
    scale, cell = place["png_scale"], place["cell"]
    assert image.size == (place["width"] * scale, place["height"] * scale)
    for i, q in enumerate(case.queries):
        for j, k in enumerate(case.key_rows):
            pixel = image.getpixel(
                (
                    round((place["left"] + (j + 0.5) * cell) * scale),
                    round((place["top"] + (i + 0.5) * cell) * scale),
                )
            )
            piece = case.rule.piece(q, k)
            assert pixel in HIDDEN if piece is None else pixel == COLORS[piece], (i, j, piece)


def boxes_of_fill(svg, color):
    """(x, y, width, height) of the rectangles filled with a colour."""
    number = r"(-?[\d.]+)"
    pattern = re.compile(rf"M{number} {number}h{number}v{number}h-")
    fill = "#{:02x}{:02x}{:02x}".format(*color)
    for path in svg.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("fill") == fill:
            for box in pattern.findall(path.get("d")):
                yield tuple(map(float, box))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_svg_is_well_formed_and_fills_the_visible_area(stepwell, tmp_path, case):
    path = tmp_path / "mask.svg"
    result = stepwell(f"mask {case.args} --json -o {path}")
    counts = json.loads(result.stdout)
    place = counts["picture"]
    svg = ElementTree.parse(path).getroot()
    assert float(svg.get("width")) == place["width"]
    for piece, color in COLORS.items():
        # The legend lies to the right of the matrix.
        right = place["left"] + counts["rows_kv"] * place["cell"]
        area = sum(w * h for x, _, w, h in boxes_of_fill(svg, color) if x < right - 0.01)
        assert area / place["cell"] ** 2 == pytest.approx(counts["pairs"][PIECES[piece]], abs=0.01)
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{counts['pairs']['visible']:,}" in texts
    assert f"{counts['tiles']['skipped']:,}" in texts


def test_large_pictures_keep_one_pixel_per_pair(stepwell, tmp_path):
    path = tmp_path / "mask.png"
    n, b = 700, 25
    place = json.loads(stepwell(f"mask -n {n} -b {b} --json -o {path}").stdout)["picture"]
    image = Image.open(path).convert("RGB")
    cell = place["cell"] * place["png_scale"]
    assert cell == pytest.approx(round(cell))
    assert round(cell) >= 1
    left, top = place["left"] * place["png_scale"], place["top"] * place["png_scale"]
    rule = Rule(b)
    rows = halves(n)

    def near_tile_edge(index):
        return min(index % 128, (n - 1 - index), -index % 128) < 6

    for i in range(0, 2 * n, 97):
        for j in range(0, 2 * n, 61):
            pixel = image.getpixel((round(left + (j + 0.5) * cell), round(top + (i + 0.5) * cell)))
            piece = rule.piece(rows[i], rows[j])
            if not near_tile_edge(i % n) and not near_tile_edge(j % n):
                assert pixel in HIDDEN if piece is None else pixel == COLORS[piece]


def test_title_is_escaped(stepwell, tmp_path):
    path = tmp_path / "mask.svg"
    png = tmp_path / "mask.png"
    title = 'a<b & "c" → ü \ud7ff\U0010ffff'
    stepwell(["mask", "-n", "8", "-b", "4", "-o", str(path), "-o", str(png), "--title", title])
    svg = ElementTree.parse(path).getroot()
    assert svg.find("{http://www.w3.org/2000/svg}title").text == title
    assert Image.open(png).size[0] > 100


def test_names_of_files_may_be_any_bytes(stepwell, tmp_path):
    name = b"mask \xff.svg"
    result = stepwell(["mask", "-n8", "-b4", "--json", "-o", name], cwd=tmp_path)
    assert json.loads(result.stdout)["picture"]["files"] == ["mask \ufffd.svg"]
    assert os.listdir(os.fsencode(tmp_path)) == [name]


def test_text_output_has_the_counts(stepwell):
    text = stepwell("mask --length 4096 --block-size 32 --tile-q 128 --tile-kv 128").stdout
    assert "16,908,288 (25.2% of 67,108,864 in a dense mask)" in text
    assert "1,088 visited of 4,096: 992 full, 96 partial, 3,008 skipped" in text


def test_closed_form_reaches_large_lengths(stepwell):
    n = 1 << 20
    counts = json.loads(stepwell(f"mask -n {n} -b 1000 --json --tile-q 4096 --tile-kv 4096").stdout)
    whole, rest = divmod(n, 1000)
    assert counts["pairs"]["visible"] == n * n + whole * 1000**2 + rest**2


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("mask -b 4", ["--length"]),
        ("mask -n 16", ["--block-size", "missing"]),
        ("mask -n 16 -b 0", ["--block-size", "0", "[1, "]),
        ("mask -n 16 -b -4", ["--block-size", "-4"]),
        ("mask -n 16 -b 2.5", ["--block-size", "2.5", "whole number"]),
        ("mask -n x -b 4", ["--length", "x"]),
        ("mask -n 5,, -b 4", ["--length"]),
        ("mask -n 99999999999999999999 -b 4", ["--length"]),
        ("mask -n 268435456,268435456 -b 4", ["--length", "rows"]),
        ("mask stripes -n 4", ["kind", "stripes", "block_causal"]),
        ("mask -n 16 -b 4 --clean sometimes", ["--clean", "sometimes", "block, causal"]),
        ("mask -n 7,5 -b 4 --layout batched", ["--layout", "interleaved"]),
        ("mask -n 7,5,6 -b 4 --seqused 1,2", ["--seqused", "2 values", "3"]),
        ("mask -n 7,5 -b 4 --total 20", ["--total", "20", "24"]),
        ("mask -n 7,5 -b 4 --layout halves --total 25", ["--total", "25", "multiple of 2"]),
        ("mask causal -n 16 -b 4", ["--block-size", "diffusion and block_causal"]),
        ("mask causal -n 16 --clean-window 3", ["--clean-window", "diffusion"]),
        ("mask causal -n 16 --window-left 3", ["--window-left", "window"]),
        ("mask -n 16 -b 4 --q-offset 3", ["--q-offset", "one sequence"]),
        ("mask -n 16 -b 4 --clean-length 3", ["--clean-length", "--layout split"]),
        ("mask -n 8 -b 4 --layout split --order clean_noisy", ["--order"]),
        ("mask -n 8 -b 4 --layout split --block-ranges 0-3", ["--block-ranges", "0-3", "LO:HI"]),
        ("mask -n 8 -b 8 --layout split --block-ranges 0:9", ["--block-ranges", "0:9", "8"]),
        ("mask -n 8 -b 8 --layout split --block-ranges 5:4", ["--block-ranges", "5:4"]),
        ("mask -n 8 -b 4 --layout split --block-ranges 0:3:4,0:1", ["--block-ranges", "0:3:4"]),
        (["mask", "-n8", "-b4", "--layout=split", "--block-ranges", ""], ["--block-ranges", "''"]),
        (
            "mask -n 8 -b 4 --layout split --block-ranges 0:3",
            ["--block-ranges", "has 1 blocks", "8 noisy rows in blocks of 4", "needs 2"],
        ),
        (
            "mask -n 4,4 --clean-length 8,3 -b 4 --layout split --block-ranges 0:5",
            ["--block-ranges", "sample 2 of 2", "0:5", "HI <= 3"],
        ),
        (
            "mask -n 4 -b 4 --layout split --block-ranges 0:3 --clean-window 2",
            ["--block-ranges", "--clean-window 2", "replaces"],
        ),
        (
            "mask -n 4 -b 4 --layout split --block-ranges 0:3 --num-views 2",
            ["--block-ranges", "--num-views 2", "one view"],
        ),
        (
            "mask -n 4 -b 4 --layout split --block-ranges 0:3 --clean-queries 0 --prefix-lens 1",
            ["--prefix-lens", "--block-ranges", "no clean query"],
        ),
        (
            "mask -n 8 -b 4 --layout split --clean-queries 0 --clean-q-offset 1",
            ["--clean-q-offset", "is 1", "no clean queries"],
        ),
        ("mask -n 16 -b 4 --seqused 17", ["--seqused", "17", "[0, 16]"]),
        ("mask -n 7,5 -b 4 --seqused 6", ["--seqused", "6", "sample 2 of 2", "[0, 5]"]),
        ("mask -n 7,5 -b 4 --layout halves --seqused 7,6", ["--seqused", "6", "[0, 5]"]),
        ("mask -n 8 -b 4 --num-views 2 --seqused 9", ["--seqused", "9", "[0, 8]"]),
        ("mask -n 8 -b 4 --layout split --seqused 9", ["--seqused", "9", "[0, 8]"]),
        ("mask -n 8 -b 4 --layout split --seqused-clean 9", ["--seqused-clean", "9", "[0, 8]"]),
        ("mask causal -n 8 --seqused 9", ["--seqused", "9", "[0, 8]"]),
        ("mask causal -n 8 --q-offset 4 --seqused-kv 13", ["--seqused-kv", "13", "[0, 12]"]),
        ("mask full -n 8 --length-kv 5 --seqused-kv 6", ["--seqused-kv", "6", "[0, 5]"]),
        ("mask -n 16 -b 4 --clean-window 0", ["--clean-window", "0", "[1, "]),
        ("mask -n 16 -b 4 --cell 8", ["--cell", "--output"]),
        (["mask", "-n16", "-b4", "--title", ""], ["--title", "empty"]),
        *(
            (["mask", "-n16", "-b4", "-omask.svg", "--title", b"a" + title], ["--title", part])
            for title, part in (
                (b"\x01", "U+0001"),
                (b"\n", "U+000A"),
                (b"\x7f", "U+007F"),
                (b"\xc2\x85", "U+0085"),
                (b"\xef\xbf\xbe", "U+FFFE"),
                (b"\xff", "0xFF"),
                (b"\x80", "0x80"),
                (b"\xc3", "0xC3"),
                (b"\xc3(", "0xC3"),
                (b"\xc0\xaf", "0xC0"),
                (b"\xed\xa0\x80", "0xED"),
                (b"\xf4\x90\x80\x80", "0xF4"),
            )
        ),
        ("mask -n 16 -b 4 -o mask.jpg", ["--output", "mask.jpg", ".svg"]),
        ("mask -n 5000 -b 4 -o mask.svg", ["--length", "10,000", "4,096"]),
        ("mask -n 2000 -b 4 --cell 64 -o mask.svg", ["--cell", "64"]),
        ("mask -n 1000000 -b 4 --tile-q 1", ["--tile-q", "tiles"]),
        ("mask -n 16 -b 4 --colour red", ["--colour"]),
        ("draw", ["draw"]),
        ("", ["command"]),
    ],
)
def test_bad_usage_names_the_argument(stepwell, tmp_path, args, parts):
    result = stepwell(args, status=2, cwd=tmp_path)
    for part in parts:
        assert part in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        "mask -n 16 -b 4 --seqused 16",
        "mask -n 7,5 -b 4 --seqused 5",
        "mask -n 8 -b 4 --layout split --seqused 8 --seqused-clean 8",
        "mask -n 8 -b 4 --layout split --clean-queries 0 --clean-q-offset 0",
        # Blocks of padding alone need no interval, and an interval past the last block is not read.
        "mask -n 8 -b 4 --layout split --seqused 4 --block-ranges 0:3",
        "mask -n 8 -b 4 --layout split --block-ranges 0:3,0:8,0:9",
        "mask causal -n 8 --q-offset 4 --seqused 8 --seqused-kv 12",
    ],
)
def test_values_at_the_bounds_are_accepted(stepwell, args):
    stepwell(args)


def test_a_file_that_cannot_be_written_is_a_failure(stepwell, tmp_path):
    path = tmp_path / "missing" / "mask.svg"
    result = stepwell(f"mask -n 16 -b 4 -o {path}", status=1)
    assert "--output" in result.stderr
    assert str(path) in result.stderr


def test_help_and_version(stepwell):
    assert re.fullmatch(r"stepwell \d+\.\d+\.\d+\n", stepwell("--version").stdout)
    help_text = stepwell("mask --help").stdout
    assert "Examples:" in help_text
    examples = re.sub(r"\n {8}", " ", help_text[help_text.index("Examples:") :])
    assert examples.count("    stepwell mask ") == 7
    options = re.sub(r"\s+", " ", help_text)
    assert "tokens of a block; required, where the mask has blocks" in options
    assert options.count("(default: the smallest of 8, 16, 32, 64, 128 that is at least a six") == 2


@pytest.mark.parametrize(
    ("length", "tile"), [(0, 8), (48, 8), (49, 16), (384, 64), (385, 128), (4096, 128)]
)
def test_automatic_tiles_are_those_of_the_help(stepwell, length, tile):
    counts = json.loads(stepwell(f"mask -n {length} -b 4 --json").stdout)
    assert counts["tiles"]["tile_q"] == counts["tiles"]["tile_kv"] == tile


def test_every_example_of_the_help_works(stepwell, tmp_path):
    help_text = stepwell("mask --help").stdout
    examples = re.sub(r"\n {8}", " ", help_text[help_text.index("Examples:") :])
    for line in re.findall(r"^    stepwell (mask .*)$", examples, re.MULTILINE):
        stepwell(line, cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mask.png",
        "mask.svg",
        "packed.svg",
    ]
