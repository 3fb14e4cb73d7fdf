"""The demos have the numbers of Lightning 2.6.6."""

import pytest
import torch
from torch.testing import assert_close

import core
from core_lightning_demos import lstm, mnist_datamodule, transformer

pytestmark = pytest.mark.numbers


def close(found, expected):
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_networks_and_texts_are_lightnings(tmp_path):
    torch.manual_seed(1)
    module = transformer.Transformer(vocab_size=11, ninp=8, nhid=8).eval()
    words = torch.randint(11, (2, 5))
    close(module(words, words).sum().item(), -283.1251525878906)
    torch.manual_seed(1)
    module = lstm.SimpleLSTM(vocab_size=11, ninp=8, nhid=8, nlayers=2).eval()
    close(module(words, module.init_hidden(2))[0].sum().item(), -263.7929382324219)
    assert list(lstm.SequenceSampler(range(11), 3)) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    (tmp_path / "wikitext-2.txt").write_text("a b\nb c a\n", encoding="utf8")
    text = transformer.WikiText2(tmp_path, block_size=2)
    assert (text.data.tolist(), text.dictionary.idx2word) == (
        [0, 1, 2, 1, 3, 0, 2],
        ["a", "b", "<eos>", "c"],
    )
    assert [each.tolist() for each in text[1]] == [[2, 1], [1, 3]]


def test_digits_come_from_files_and_a_failed_download_says_where_to_put_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PL_USE_MOCKED_MNIST", "1")
    folder = tmp_path / "MNIST" / "complete"

    def refuse(*_):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlretrieve", refuse)
    with pytest.raises(
        core.ConfigurationError, match=r"no network. Put that file at .*training.pt"
    ):
        mnist_datamodule.MNIST(str(tmp_path))
    for name, number in (("training.pt", 12), ("test.pt", 4)):
        torch.save(
            (torch.full((number, 28, 28), 255, dtype=torch.uint8), torch.arange(number)),
            folder / name,
        )
    image, kind = mnist_datamodule.MNIST(str(tmp_path), train=False)[3]
    assert (image.shape, kind) == ((1, 28, 28), 3)
    close(float(image[0, 0, 0]), (255 - 0.1307) / 0.3081)
    data = mnist_datamodule.MNISTDataModule(str(tmp_path), val_split=4, num_workers=0, batch_size=2)
    data.prepare_data()
    data.setup("fit")
    assert (
        len(data.train_dataloader()),
        len(data.val_dataloader()),
        len(data.test_dataloader()),
    ) == (4, 2, 2)
