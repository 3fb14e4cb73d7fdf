"""Trains a Hugging Face model, made of a config, on batches as its tokenizer makes them:
`BatchEncoding`.

The model decides whether a sentence says that more is there than before. All is made here; nothing
is downloaded.

pip install 'core-training[hugging-face]'
python examples/hugging_face.py
python examples/hugging_face.py --strategy ddp --devices 2 --accelerator cpu
"""

import argparse
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import (
    BatchEncoding,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from core import Module, Trainer

MORE, LESS = ["grew", "rose", "gained", "won"], ["shrank", "fell", "lost", "sank"]
OTHERS = ["the", "a", "company", "team", "price", "market", "today", "again", "and", "this", "year"]
SPECIAL = ["[PAD]", "[UNK]"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *MORE, *LESS, *OTHERS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def make_sentences(number: int, seed: int) -> list[tuple[str, int]]:
    """Sentences of several lengths, and whether they say that more is there."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(number):
        label = draw.randrange(2)
        words = draw.choices(OTHERS, k=draw.randrange(3, 9))
        words.insert(draw.randrange(len(words)), draw.choice(MORE if label else LESS))
        sentences.append((" ".join(words), label))
    return sentences


class Classifier(Module):
    """A small BERT, which computes its loss itself."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
        )
        self.bert = BertForSequenceClassification(config)

    def training_step(self, batch: BatchEncoding) -> Tensor:
        loss: Tensor = self.bert(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: BatchEncoding) -> None:
        is_right = self.bert(**batch).logits.argmax(dim=1) == batch["labels"]
        self.log("accuracy", is_right.float().mean(), batch_size=len(batch.input_ids))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    tokenizer = make_tokenizer()

    def collate(samples: list[tuple[str, int]]) -> BatchEncoding:
        sentences, labels = zip(*samples, strict=True)
        batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
        batch["labels"] = torch.tensor(labels)
        return batch

    torch.manual_seed(0)
    train = DataLoader(make_sentences(512, seed=0), batch_size=16, shuffle=True, collate_fn=collate)
    validation = DataLoader(make_sentences(128, seed=1), batch_size=16, collate_fn=collate)
    trainer = Trainer(
        accelerator=options.accelerator,
        strategy=options.strategy,
        devices=options.devices,
        precision=options.precision,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(len(tokenizer)), train, validation)
    trainer.print(
        f"Accuracy on 128 new sentences: {float(trainer.callback_metrics['accuracy']):.1%}"
    )


if __name__ == "__main__":
    main()
