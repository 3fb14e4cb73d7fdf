"""The example programs, started as a user starts them."""

import os
import re
import sys
from pathlib import Path

import pytest

from core_testing import programs

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TWO_PROCESSES = ("--accelerator", "cpu", "--devices", "2")
PRELOAD = f"{programs.PRELOAD},sklearn.datasets"  # which the examples on digits import
HUGGING_FACE = {
    "preload": f"{programs.PRELOAD},transformers.models.auto.modeling_auto,"
    "transformers.models.llama.modeling_llama"
}
DDP = (*TWO_PROCESSES, "--strategy", "ddp")
ONE_PROCESS = ("--accelerator", "cpu", "--strategy", "single_device")


def run_example(name, *arguments, starter=(sys.executable,), preload=PRELOAD):
    """Output of an example that has to end well."""
    command = [*starter, EXAMPLES / name, *arguments]
    done = programs.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240, preload=preload
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(output, processes="2 processes"):
    """The percentage in the last line, which stands there once: rank 0 alone prints."""
    (line,) = re.findall(
        r"^Accuracy on 360 digits that were not trained on: (.*)$", output, re.MULTILINE
    )
    percent, _, rest = line.partition("%")
    assert rest == f" ({processes})"
    return float(percent)


@pytest.mark.slow
def test_the_demo_reads_as_many_digits_as_the_readme_says():
    """Rounding differs between processors, and after ten epochs a few of the 360 digits do; one is
    0.28 %.
    """
    tox, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("tox.ini", "README.md"))
    (arguments,) = re.findall(
        r"^    demo: python \"{tox_root}/examples/digits\.py\" (.*)$", tox, re.MULTILINE
    )
    output = run_example("digits.py", *arguments.split())
    assert accuracy(output) == pytest.approx(accuracy(readme), abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starter", "arguments", "processes", "least"),
    [
        (
            (sys.executable,),
            (*ONE_PROCESS, "--precision", "bf16-mixed", "--epochs", "1"),
            "1 process",
            85,
        ),
        (
            (*programs.TORCHRUN, "--standalone", "--nproc-per-node", "2"),
            ("--accelerator", "cpu", "--epochs", "2"),
            "2 processes",
            80,
        ),
    ],
    ids=["bfloat16", "torchrun"],
)
def test_digits_are_read(starter, arguments, processes, least):
    assert accuracy(run_example("digits.py", *arguments, starter=starter), processes) > least


@pytest.mark.slow
def test_char_gpt_learns_in_two_processes_and_writes():
    def validation_losses(output):
        return [float(loss) for loss in re.findall(r"validation loss (\d+\.\d+)", output)]

    output = run_example("char_gpt.py", *TWO_PROCESSES, "--strategy", "ddp", "--steps", "60")
    first, last = validation_losses(output)
    assert last < first < 3.5, "drawing from 97 characters at random gives 4.6"
    sample = output.partition("\n\n")[2]
    assert sample.startswith("def ")
    assert len(sample) > 300


@pytest.mark.slow
def test_llama_learns_with_its_layers_cut_by_its_config():
    pytest.importorskip(
        "transformers", reason="needs transformers, which the extra hugging-face brings"
    )
    where = (*TWO_PROCESSES, "--parallel", "tensor=2")
    output = run_example("llama.py", *where, "--epochs", "1", **HUGGING_FACE)
    (loss,) = re.findall(r"^Loss on 128 new sentences: ([\d.]+)$", output, re.MULTILINE)
    assert float(loss) < 3.2, "drawing from 32 words at random gives 3.5"


@pytest.mark.slow
def test_a_pretrained_model_is_tuned_and_saved(tmp_path):
    pytest.importorskip("core_transformers", reason="needs core-transformers")
    where = (*TWO_PROCESSES, "--parallel", "tensor=2", "--folder", str(tmp_path))
    output = run_example("pretrained.py", *where, "--epochs", "1", **HUGGING_FACE)
    first, tuned = map(
        float, re.findall(r"^Loss of \w+ on 128 new sentences: ([\d.]+)$", output, re.MULTILINE)
    )
    assert tuned < first - 0.2


@pytest.mark.slow
def test_a_gan_comes_closer_to_the_digits():
    output = run_example("gan.py", *ONE_PROCESS, "--epochs", "15")
    (distances,) = re.findall(
        r"^Distance from the real digits: ([\d.]+) before, ([\d.]+) after$", output, re.MULTILINE
    )
    before, after = map(float, distances)
    assert after < 0.6 * before
    drawn = output.splitlines()[-8:]
    assert all(len(line) == 8 * 8 + 7 * 2 for line in drawn), "eight images side by side"


@pytest.mark.slow
def test_fine_tuning_leaves_frozen_layers_alone_and_reads_other_digits():
    output = run_example("fine_tuning.py", *DDP, "--epochs", "2")
    (accuracies,) = re.findall(
        r"^Accuracy on 5 to 9: ([\d.]+)% before fine-tuning, ([\d.]+)% after$", output, re.MULTILINE
    )
    before, after = map(float, accuracies)
    assert before < 50
    assert after > 80
    assert output.endswith("The frozen layer is as it was: True\n")


@pytest.mark.slow
def test_unlabeled_digits_help_to_read():
    """Over an epoch of 22 steps, in which the 5 batches of labeled digits come several times."""

    def accuracy_with_labels(output):
        (percent,) = re.findall(r"^Accuracy with 50 labels: ([\d.]+)%$", output, re.MULTILINE)
        return float(percent)

    output = run_example("several_loaders.py", *ONE_PROCESS, "--epochs", "15")
    assert len(re.findall(r"^ +14 +330 ", output, re.MULTILINE)) == 1
    assert accuracy_with_labels(output) > 80
    assert accuracy_with_labels(run_example("several_loaders.py", *DDP, "--epochs", "15")) > 70


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "num_files"), [(ONE_PROCESS, 29), (DDP, 30)], ids=["single_device", "ddp"]
)
def test_every_rank_writes_its_predictions(where, num_files):
    output = run_example("predict_to_disk.py", *where, "--epochs", "3")
    assert f"{num_files} files with 1797 predictions; each sample once: True\n" in output
    (percent,) = re.findall(r"^([\d.]+)% of them are right$", output, re.MULTILINE)
    assert float(percent) > 80


@pytest.mark.slow
def test_hugging_face_learns_from_batches_of_its_tokenizer():
    pytest.importorskip(
        "transformers", reason="needs transformers, which the extra hugging-face brings"
    )
    output = run_example("hugging_face.py", *DDP, **HUGGING_FACE)
    (percent,) = re.findall(r"^Accuracy on 128 new sentences: ([\d.]+)%$", output, re.MULTILINE)
    assert float(percent) > 90, "half of them by chance"


@pytest.mark.slow
def test_the_best_of_n_are_learned_from_a_process_that_generates():
    pytest.importorskip("core_weights", reason="needs core-weights")
    output = run_example(
        "best_of_n.py", "--accelerator", "cpu", "--strategy", "ddp", "--steps", "50"
    )
    rewards = [
        float(reward)
        for reward in re.findall(r"^step +\d+   reward ([\d.]+)$", output, re.MULTILINE)
    ]
    assert len(rewards) == 3
    assert rewards[0] < 0.2, "one digit in ten by chance"
    assert rewards[-1] > 0.6
