import hashlib

import pytest
import torch

from stepwell.train import data

LENGTH = 16


def files(count, size):
    return {f"file{i}.py": bytes([i % 251]) * size + f"{i}".encode() for i in range(count)}


def test_split_is_by_whole_files_and_disjoint():
    contents = files(200, 100)
    corpus = data.split("test", contents, LENGTH)
    assert set(corpus.train_files) | set(corpus.held_out_files) == set(contents)
    assert not set(corpus.train_files) & set(corpus.held_out_files)
    assert bytes(corpus.train.tolist()) == b"".join(contents[n] for n in corpus.train_files)
    assert bytes(corpus.held_out.tolist()) == b"".join(contents[n] for n in corpus.held_out_files)
    total = len(corpus.train) + len(corpus.held_out)
    assert 0.05 <= len(corpus.held_out) / total < 0.06


def test_split_is_the_same_each_time_and_follows_names_not_order():
    contents = files(200, 100)
    once = data.split("test", contents, LENGTH)
    again = data.split("test", contents, LENGTH)
    reordered = data.split("test", dict(reversed(contents.items())), LENGTH)
    assert once.fingerprint() == again.fingerprint()
    assert set(reordered.held_out_files) == set(once.held_out_files)
    assert reordered.fingerprint() != once.fingerprint()


def test_no_held_out_file_has_a_copy_in_the_training_text():
    contents = {f"copy{i}": bytes([i // 10]) * 100 for i in range(300)} | {"empty": b""}
    corpus = data.split("test", contents, LENGTH)
    digests = [
        {hashlib.sha256(contents[name]).digest() for name in names}
        for names in (corpus.train_files, corpus.held_out_files)
    ]
    assert not digests[0] & digests[1]
    assert len(corpus.train_files) + len(corpus.held_out_files) == 30


def test_no_file_is_most_of_the_held_out_text():
    contents = files(200, 100) | {f"big{i}": bytes([i]) * 2000 for i in range(5)}
    corpus = data.split("test", contents, LENGTH)
    assert not [name for name in corpus.held_out_files if name.startswith("big")]


def test_end_of_the_only_file_is_held_out():
    text = bytes(range(250)) * 8
    corpus = data.split("test", {"a.txt": text}, LENGTH)
    assert bytes(torch.cat((corpus.train, corpus.held_out)).tolist()) == text
    assert len(corpus.held_out) == 200
    assert corpus.held_out_files == ["a.txt from byte 1800"]


@pytest.mark.parametrize("text", [b"", b"too short", b"x" * 40])
def test_text_that_is_too_short_is_refused(text):
    with pytest.raises(ValueError, match=r"--text: \d+ bytes of .* text; accepted: at least two"):
        data.split("test", {"a.txt": text}, LENGTH)


def test_error_states_what_is_held_out():
    with pytest.raises(ValueError, match=r"held out are 20 of 200 bytes, 10%\)"):
        data.split("test", {"a.txt": bytes(range(200))}, LENGTH)
    with pytest.raises(ValueError, match=r"held out are 13 of 231 bytes, 6%\)"):
        data.split("test", {f"{i}": bytes([i]) * (i + 1) for i in range(21)}, LENGTH)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"--text: cannot read .*nowhere"):
        data.text_files([str(tmp_path / "nowhere")])
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(ValueError, match="is given twice"):
        data.text_files([str(tmp_path / "a")] * 2)


def test_standard_library_is_sources_without_packages_and_tests():
    source, contents = data.standard_library()
    names = list(contents)
    assert "standard library of Python" in source
    assert "argparse.py" in names
    assert "json/decoder.py" in names
    assert names == sorted(names)
    folders = {folder for name in names for folder in name.split("/")[:-1]}
    assert not folders & {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    assert contents["argparse.py"].startswith(b"# Author")


def test_an_epoch_visits_every_window_once():
    text = torch.arange(256).repeat(2)[:330].to(torch.uint8)
    windows = data.Windows(text, LENGTH, batch=1, seed=0)
    per_epoch = 330 // LENGTH - 1
    starts = [int(windows._start(i)) for i in range(2 * per_epoch)]
    for epoch in (starts[:per_epoch], starts[per_epoch:]):
        assert sorted(epoch) == list(range(min(epoch), min(epoch) + per_epoch * LENGTH, LENGTH))
        assert epoch != sorted(epoch)
        assert max(epoch) + LENGTH <= len(text)
    assert starts[:per_epoch] != starts[per_epoch:]


def test_windows_depend_on_seed_and_step_alone():
    text = torch.randint(256, (1000,), dtype=torch.uint8)
    windows = data.Windows(text, LENGTH, batch=4, seed=0)
    in_order = [windows.batch(step) for step in range(30)]
    fresh = data.Windows(text, LENGTH, batch=4, seed=0)
    for step in (29, 3, 17):
        torch.testing.assert_close(fresh.batch(step), in_order[step], rtol=0, atol=0)
    assert not torch.equal(data.Windows(text, LENGTH, 4, seed=1).batch(0), in_order[0])


def test_even_windows_cover_the_text_or_spread_over_it():
    text = torch.arange(200).to(torch.uint8)
    whole = data.even_windows(text, LENGTH, 10_000)
    torch.testing.assert_close(whole.flatten(), torch.arange(192))
    some = data.even_windows(text, LENGTH, 5 * LENGTH)
    assert some.shape == (5, LENGTH)
    assert some[0, 0] == 0
    assert len(set(some[:, 0].tolist())) == 5
    assert data.even_windows(text, LENGTH, 1).shape == (2, LENGTH)
